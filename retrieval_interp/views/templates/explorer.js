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
    this.root.tabIndex = -1; // what is clicked may be replaced, and keys come here then
    this.root.addEventListener("keydown", event => this.press(event));
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
      button.focus();
      for (const one of this.root.querySelectorAll(".head")) one.classList.toggle("picked", one === button);
      this.ask("show", { head });
    }
    if (line) this.ask("suppose", { line });
    if (toggle) this.ask("toggle", { path: toggle });
  }

  // Of keys with a meaning here, JupyterLab would run the cell, or change it, or go to another.
  press(event) {
    const { key, target } = event, heads = [...this.root.querySelectorAll(".head")];
    const across = heads[0].parentElement.childElementCount, at = heads.indexOf(target.closest(".head"));
    const step = at >= 0 && { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -across, ArrowDown: across }[key];
    const undo = (event.ctrlKey || event.metaKey) && /^z$/i.test(key) && target.type !== "number";
    if (key === "Enter" || step || undo) event.stopPropagation();
    if (step || undo) event.preventDefault();
    if (step) heads[at + step]?.click();
    if (undo) this.root.querySelector(`[data-ask=${event.shiftKey ? "redo" : "undo"}]`).click();
  }

  // Only panels that differ are replaced; what has the focus keeps it.
  draw() {
    const fresh = document.createElement("template");
    fresh.innerHTML = this.model.get("page");
    let refocus = () => {};
    for (const panel of fresh.content.querySelectorAll("[data-panel]")) {
      const { panel: name } = panel.dataset, html = panel.outerHTML;
      if (html === this.drawn[name]) continue;
      this.drawn[name] = html;
      const old = this.root.querySelector(`[data-panel=${name}]`);
      const active = old.getRootNode().activeElement, inside = old.contains(active);
      for (const { name, value } of panel.attributes) old.setAttribute(name, value);
      old.replaceChildren(...panel.childNodes);
      if (inside) refocus = () => this.focusLike(old, active);
    }
    this.selected = this.root.querySelector("[data-selected]").dataset.selected;
    markPath(this.root, this.selected);
    refocus();
  }

  focusLike(panel, before) {
    const keys = ["data-path", "data-head", "data-line", "data-ask", "name"];
    const key = keys.find(key => before.hasAttribute(key)), value = key && before.getAttribute(key);
    const same = key && panel.querySelector(`[${key}="${CSS.escape(value)}"]:not(:disabled)`);
    (same || this.root).focus({ preventScroll: true });
  }
}
