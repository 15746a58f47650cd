// The page of the explorer. It displays what the workbench tells and sends messages; of its own it
// keeps only which chain is highlighted. `model` is a widget's, or has the same four methods.

export default { render };

function render({ model, el }) { return show(model, el).listen(); }

// `scope` is where the selected path is marked: in the explorer, or on the whole page.
function show(model, place, scope) {
  const page = new Page(model, scope);
  place.append(page.root);
  page.drawState();
  page.drawShown();
  return page;
}

function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

const MANY_ROLES = 9; // more make a table too wide for three columns

const headName = (layer, head) => `L${layer}.H${head}`;
const lossText = loss => loss === null ? "–" : loss.toFixed(4);
const counted = (number, word) => `${number} ${word}${number === 1 ? "" : "s"}`;

// A position's label without its roles: `a` of `a (query.1)`.
const tokenOf = label => label.replace(/(.) \([^()]*\)$/, "$1");

// What the lines and numbers of a drawing mean, of those that it has.
function legend(drawing, loss) {
  if (!drawing.querySelector(".arrow")) return "";
  const said = ["An arrow is a path: what its head moves from role to role."];
  if (drawing.querySelector(".arrow > text"))
    said.push(`Its number is the ${loss} when it is ablated too; wider arrows cost more.`);
  if (drawing.querySelector(".arrow [stroke-dasharray]"))
    said.push("Dashed paths only enable: the circuit does without them, the intact model does not.");
  return said.join(" ");
}

function onEnter(action) {
  return event => {
    if (event.key !== "Enter") return;
    event.stopPropagation(); // JupyterLab would run the cell
    event.preventDefault();
    action();
  };
}

class Page {
  constructor(model, scope) {
    this.model = model;
    this.info = model.get("model_info");
    this.chain = 0; // -1: no chain is highlighted
    this.picture = new Example(this);
    this.heads = new Heads(this);
    this.bar = this.info.frozen ? null : new Bar(this);
    const many = this.info.roles.length > MANY_ROLES ? " many" : "";
    this.root = element("div", { className: `ri-explorer${many}` },
      element("div", { className: "wide" },
        ...this.bar?.parts ?? [],
        element("h4", { textContent: "Heads, by mean attention of role to role" }), this.heads.maps,
        element("div", { className: "panels" },
          this.makeLook(), this.makePaths(), ...this.bar ? [this.makeChoices()] : [],
          this.makeCircuit())));
    this.scope = scope ?? this.root;
  }

  // Python's state, and messages to Python

  get state() { return this.model.get("state"); }
  get shown() { return this.model.get("shown"); }

  ask(what, more = {}) { this.model.send({ do: what, ...more }); }

  show(change) {
    const { layer, head, example, with_circuit } = this.shown, path = this.selected;
    this.ask("show", { layer, head, example, with_circuit, path, ...change });
  }

  pathName(head, dest, src) {
    return `${head} ${this.info.roles[dest]}<-${this.info.roles[src]}`;
  }

  // A click on a path selects it everywhere; one on the selected path adds it, or takes it out.
  click(path) {
    if (path !== this.selected) this.select(path);
    else if (!this.info.frozen) this.ask("toggle", { path });
  }

  select(path) {
    const [layer, head] = path.match(/[0-9]+/g).slice(0, 2).map(Number);
    this.selected = path;
    this.mark();
    if (path !== this.shown.path?.name)
      this.details.replaceChildren(element("b", { textContent: path }), " measuring …");
    this.show({ layer, head, path });
  }

  // Everything that stands for the selected path.
  mark() {
    for (const one of this.scope.querySelectorAll("[data-path]"))
      one.classList.toggle("selected", one.dataset.path === this.selected);
  }

  // The selected head: its name, its paths in the circuit, and whether one of its own chain is there.
  current() {
    const label = headName(this.shown.layer, this.shown.head), { paths } = this.state.heads[label];
    const isIn = (dest, src) => paths.some(p => p[0] === dest && p[1] === src);
    return { label, paths, isIn };
  }

  // Building, once

  makeLook() {
    const pick = () => {
      const wanted = this.number.value === "" ? null : Number(this.number.value);
      if (wanted !== this.shown.example) this.show({ example: wanted });
    };
    this.title = element("h4");
    this.number = element("input", {
      type: "number", min: 0, max: this.info.examples - 1, ariaLabel: "example",
      onchange: pick, onkeydown: onEnter(pick),
    });
    this.withCircuit = element("input", {
      type: "checkbox", onchange: () => this.show({ with_circuit: this.withCircuit.checked }),
    });
    this.chains = element("div", { className: "row" });
    return element("div", { className: "look" }, this.title,
      element("div", { className: "row" },
        element("label", {}, "example ", this.number),
        ...this.info.frozen ? [] : [
          element("label", { title: "attention after the circuit's replacements" },
            this.withCircuit, " with the circuit in place")]),
      this.chains, ...this.picture.parts);
  }

  makePaths() {
    this.details = element("div", { className: "details" });
    return element("div", { className: "edit" }, this.heads.title,
      element("div", { className: "scrolled" }, this.heads.table), this.details);
  }

  makeChoices() {
    this.choices = element("div", { className: "choices" });
    return element("div", { className: "mechanism" },
      element("h4", { textContent: `Mechanism, and the ${this.info.loss_name} it would give` }),
      this.choices);
  }

  makeCircuit() {
    const { loss_name } = this.info;
    const link = (textContent, make) => element("button", { textContent, onclick: make });
    const downloads = element("div", { className: "row downloads" }, "Download",
      link("JSON", () => download("circuit.json", "application/json", this.state.json)),
      link("CSV", () => download("paths.csv", "text/csv", csv(this.state.rows, loss_name))),
      link("SVG", () => download("circuit.svg", "image/svg+xml", this.state.drawing)));
    this.drawing = element("div", { className: "drawing" });
    this.drawing.onclick = event => this.clickArrow(event);
    this.drawing.onkeydown = event => {
      if (event.key === "Enter" || event.key === " ") this.clickArrow(event);
    };
    this.legend = element("div", { className: "legend soft" });
    this.rows = element("div", { className: "rows" });
    return element("div", { className: "circuit" },
      element("h4", { textContent: this.info.frozen ? "The circuit" : "The circuit so far" }),
      this.drawing, this.legend, this.rows, downloads);
  }

  clickArrow(event) {
    const arrow = event.target.closest("[data-path]");
    if (!arrow) return;
    event.stopPropagation();
    event.preventDefault();
    this.select(arrow.dataset.path);
  }

  // Redraws on every change of Python's state; returns a function that stops that.
  listen() {
    const drawn = { "change:state": () => this.drawState(), "change:shown": () => this.drawShown() };
    for (const [change, draw] of Object.entries(drawn)) this.model.on(change, draw);
    // The canvas uses the page's colours, which change with the theme.
    const repaint = () => this.picture.draw();
    const dark = matchMedia("(prefers-color-scheme: dark)");
    const themes = new MutationObserver(repaint);
    themes.observe(document.body, { attributes: true });
    dark.addEventListener("change", repaint);
    return () => {
      for (const [change, draw] of Object.entries(drawn)) this.model.off(change, draw);
      themes.disconnect();
      dark.removeEventListener("change", repaint);
    };
  }

  // Drawing Python's state

  // Redrawing replaces the buttons; keyboard users keep their focus.
  keepFocus(draw, ...attributes) {
    const active = this.root.contains(document.activeElement) ? document.activeElement : null;
    const found = attributes.find(attribute => active?.dataset[attribute]);
    const value = found && active.dataset[found], place = active?.closest("table, svg")?.parentElement;
    draw();
    if (value)
      (place?.isConnected ? place : this.root).querySelector(`[data-${found}="${CSS.escape(value)}"]`)
        ?.focus();
  }

  drawState() {
    const { state } = this;
    this.bar?.draw();
    if (state.failed) this.drawDetails();
    this.number.value = this.shown.example;
    this.keepFocus(() => { this.drawCircuit(); this.drawRows(); }, "path");
    this.drawHeadsAndRoles();
    this.picture.draw();
  }

  drawShown() {
    const { shown } = this;
    this.selected = shown.path?.name ?? null;
    this.title.textContent = `${this.current().label}, `
      + `${shown.with_circuit ? "with the circuit" : "intact model"}: rows attend to columns`;
    this.number.value = shown.example;
    this.withCircuit.checked = shown.with_circuit;
    this.drawChains();
    if (this.bar) this.keepFocus(() => this.drawChoices(), "choice");
    this.drawDetails();
    this.drawHeadsAndRoles();
    this.picture.draw();
  }

  drawCircuit() {
    if (this.state.drawing !== this.source) {
      this.source = this.state.drawing;
      this.drawing.innerHTML = this.source;
      for (const arrow of this.drawing.querySelectorAll("[data-path]")) {
        arrow.setAttribute("tabindex", "0");
        arrow.setAttribute("role", "button");
      }
      // Narrow pages scroll a wide drawing rather than make its letters too small.
      const svg = this.drawing.querySelector("svg");
      svg.style.setProperty("--natural", `${svg.viewBox.baseVal.width}px`);
      this.legend.textContent = this.info.frozen ? "" : legend(this.drawing, this.info.loss_name);
    }
    this.mark();
  }

  drawRows() {
    const { rows } = this.state, loss = this.info.loss_name;
    if (!rows.length) { this.rows.replaceChildren(); return; }
    const header = [["path", ""], ["attention", "mean attention in the intact model"],
      [`${loss}, ablated too`, "the circuit without this path: what it carries"],
      [`${loss}, cut live`, "the intact model without this path: what it carries or enables"]];
    const table = element("table", {},
      element("thead", {}, element("tr", {}, ...header.map(([text, title]) =>
        element("th", { scope: "col", title }, element("button", { textContent: text }))))),
      element("tbody", {}, ...rows.map(row => this.rowOf(row))));
    this.rows.replaceChildren(table);
    makeSortable(table);
    this.mark();
  }

  rowOf(row) {
    const button = element("button", { textContent: row.name, title: row.label });
    const made = element("tr", { onclick: () => this.select(row.name) },
      element("td", {}, button),
      ...[row.attention?.toFixed(2), row.ablated?.toFixed(4), row.live?.toFixed(4)].map(text =>
        element("td", { textContent: text ?? "–" })));
    made.dataset.path = button.dataset.path = row.name;
    return made;
  }

  // What is known of the selected path.
  drawDetails() {
    const { info, shown } = this, { path } = shown;
    const hint = info.frozen ? "" : ", and a click on the selected one adds it or takes it out";
    if (!path) {
      this.details.replaceChildren(element("span", { className: "soft",
        textContent: `A click on a path, here or in the circuit, shows what it is worth${hint}.` }));
      return;
    }
    const facts = [
      ["mean attention", path.attention?.toFixed(3)],
      [`${info.loss_name}, ablated too`, path.ablated?.toFixed(4)],
      [`${info.loss_name} with it`, path.added?.toFixed(4)],
      [`${info.loss_name}, cut live`, path.live?.toFixed(4)],
      ["", path.does || (path.enables?.length ? `enables ${path.enables.join(", ")}` : "")],
      ["", path.note],
    ].filter(([, value]) => value);
    this.details.replaceChildren(
      element("div", {}, element("b", { textContent: path.name }), " ",
        element("span", { className: "soft", textContent: path.label })),
      element("dl", {}, ...facts.flatMap(([name, value]) => [
        element("dt", { textContent: name }),
        element("dd", { textContent: value, className: name ? "" : "all" })])));
    if (!info.frozen && !path.note)
      this.details.append(element("button", {
        textContent: path.present ? "Take it out" : "Add it",
        onclick: () => this.ask("toggle", { path: path.name }),
      }));
  }

  drawHeadsAndRoles() {
    this.keepFocus(() => this.heads.draw(), "head", "path");
    this.mark();
  }

  drawChains() {
    const pick = (number, title) => element("button", {
      textContent: tokenOf(title), title, className: number === this.chain ? "on" : "",
      onclick: () => { this.chain = number; this.drawShown(); },
    });
    const { chains, tokens } = this.shown;
    this.chains.replaceChildren("chain of ",
      ...chains.map((positions, number) => pick(number, tokens[positions.find(at => at >= 0) ?? 0])), pick(-1, "all"));
  }

  drawChoices() {
    this.choices.replaceChildren(...(this.shown.choices ?? []).flatMap(choice => {
      const button = element("button", {
        textContent: choice.name, className: choice.chosen ? "on" : "", title: choice.line,
        onclick: () => this.ask("suppose", { line: choice.line }),
      });
      button.dataset.choice = choice.name;
      return [button, element("span", { textContent: lossText(choice.loss) }),
        element("span", { className: "soft" }, ...choice.paths.split(" ").flatMap(path =>
          [element("span", { className: "path", textContent: path }), " "]))];
    }));
  }
}
