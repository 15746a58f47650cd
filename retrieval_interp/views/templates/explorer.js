// The page of the explorer. Python makes its HTML; what is clicked is sent as a message. `model` is a
// widget's, or has the same methods.

export default { render: ({ model, el }) => { new Page(model, el); } };

class Page {
  constructor(model, place) {
    this.model = model;
    this.drawn = {}; // HTML of each panel
    this.root = document.createElement("div");
    this.root.className = "ri ri-explorer";
    this.root.innerHTML = model.get("page");
    place.append(this.root);
    followPaths(this.root, (path, one) => {
      const again = path === this.selected && one.matches("td");
      markPath(this.root, path); // at once; Python answers between two measurements
      this.ask(again ? "toggle" : "show", { path });
    });
    this.root.addEventListener("click", event => this.click(event));
    this.root.addEventListener("change", ({ target }) => this.ask("show", {
      [target.name]: target.type === "checkbox" ? target.checked : Number(target.value),
    }));
    this.root.addEventListener("keydown", event => {
      if (event.key === "Enter") event.stopPropagation(); // JupyterLab would run the cell
    });
    model.on("change:page", () => this.draw());
    this.draw();
  }

  ask(what, more = {}) { this.model.send({ do: what, ...more }); }

  click(event) {
    const token = event.target.closest("[data-place]"), button = event.target.closest("button");
    if (token) this.ask("ask", { place: token.dataset.place });
    if (!button) return;
    const { ask, head, line, toggle } = button.dataset;
    if (ask) this.ask(ask);
    if (head) {
      for (const one of this.root.querySelectorAll(".head")) one.classList.toggle("picked", one === button);
      this.ask("show", { head });
    }
    if (line) this.ask("suppose", { line });
    if (toggle) this.ask("toggle", { path: toggle });
  }

  // Only panels that differ are replaced; a path keeps the focus.
  draw() {
    const fresh = document.createElement("template");
    fresh.innerHTML = this.model.get("page");
    let refocus = () => {};
    for (const panel of fresh.content.querySelectorAll("[data-panel]")) {
      const { panel: name } = panel.dataset, html = panel.outerHTML;
      if (html === this.drawn[name]) continue;
      this.drawn[name] = html;
      const old = this.root.querySelector(`[data-panel=${name}]`);
      const active = old.getRootNode().activeElement, path = old.contains(active) && active.dataset.path;
      for (const { name, value } of panel.attributes) old.setAttribute(name, value);
      old.replaceChildren(...panel.childNodes);
      if (path) refocus = () => old.querySelector(`[data-path="${CSS.escape(path)}"]`)?.focus();
    }
    this.selected = this.root.querySelector("[data-selected]").dataset.selected;
    markPath(this.root, this.selected);
    refocus();
  }
}
