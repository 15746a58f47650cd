// The page of the explorer. It displays what Python tells it and sends messages; of its own it keeps
// only which chain is highlighted. `model` is a widget's, or has the same four methods.

export default { render: ({ model, el }) => new Page(model, el).listen() };

const MANY_ROLES = 9; // more make a table too wide for three columns

function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

const button = (textContent, onclick, more = {}) =>
  element("button", { textContent, onclick, ...more });
const soft = textContent => element("span", { className: "soft", textContent });
const panel = (name, title, ...parts) => element("div", { className: name },
  title instanceof Node ? title : element("h4", { textContent: title }), ...parts);

const lossText = loss => loss === null ? "–" : loss.toFixed(4);
const counted = (number, word) => `${number} ${word}${number === 1 ? "" : "s"}`;

// A position's label without its roles: `a` of `a (query.1)`.
const tokenOf = label => label.replace(/(.) \([^()]*\)$/, "$1");

// Layer and head of a path or a head, by name.
const headOf = name => name.match(/[0-9]+/g).slice(0, 2).map(Number);

const onEnter = action => event => {
  if (event.key !== "Enter") return;
  event.stopPropagation(); // JupyterLab would run the cell
  event.preventDefault();
  action();
};

function download(name, type, text) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  element("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

class Page {
  // `scope` is where the selected path is marked: in the explorer, or on a whole report.
  constructor(model, place, scope) {
    this.model = model;
    this.info = model.get("model_info");
    this.chain = 0; // -1: no chain is highlighted
    this.example = new Example(this);
    const many = this.info.roles.length > MANY_ROLES ? " many" : "";
    this.root = element("div", { className: `ri-explorer${many}` },
      ...this.info.static ? [] : this.makeBar(),
      panel("wide", "Heads, by mean attention of role to role", this.makeMaps()),
      element("div", { className: "panels" }, this.makeLook(), this.makePaths(),
        ...this.info.static ? [] : [this.makeChoices()], this.makeCircuit()));
    this.scope = scope ?? this.root;
    place.append(this.root);
    this.draw();
  }

  get state() { return this.model.get("state"); }
  get shown() { return this.model.get("shown"); }

  ask(what, more = {}) { this.model.send({ do: what, ...more }); }

  show(change) {
    const { layer, head, example, with_circuit } = this.shown, path = this.selected;
    this.ask("show", { layer, head, example, with_circuit, path, ...change });
  }

  // The name of the shown head, and its paths in the circuit.
  current() {
    const name = `L${this.shown.layer}.H${this.shown.head}`;
    return { name, paths: this.state.heads[name].paths };
  }

  pathName(dest, src) {
    return `${this.current().name} ${this.info.roles[dest]}<-${this.info.roles[src]}`;
  }

  ends(path) { return path.split(" ")[1].split("<-").map(role => this.info.roles.indexOf(role)); }

  // A click on a path selects it everywhere; one on the selected path adds it, or takes it out.
  click(path) {
    if (path !== this.selected) this.select(path);
    else if (!this.info.static) this.ask("toggle", { path });
  }

  select(path) {
    const [layer, head] = headOf(path);
    this.selected = path;
    this.mark();
    if (path !== this.shown.path?.name)
      this.details.replaceChildren(element("b", { textContent: path }), " measuring …");
    this.show({ layer, head, path });
  }

  mark() {
    for (const one of this.scope.querySelectorAll("[data-path]"))
      one.classList.toggle("selected", one.dataset.path === this.selected);
  }

  // Redraws on every change of Python's values; returns a function that stops that.
  listen() {
    const draw = () => this.draw(), changes = ["change:state", "change:shown"];
    for (const change of changes) this.model.on(change, draw);
    // The canvas uses the page's colours, which change with the theme.
    const repaint = () => this.example.draw(), themes = new MutationObserver(repaint);
    const dark = matchMedia("(prefers-color-scheme: dark)");
    themes.observe(document.body, { attributes: true });
    dark.addEventListener("change", repaint);
    return () => {
      for (const change of changes) this.model.off(change, draw);
      themes.disconnect();
      dark.removeEventListener("change", repaint);
    };
  }

  draw() {
    // Redrawing replaces the buttons; keyboard users keep their focus.
    const active = this.root.contains(document.activeElement) ? document.activeElement : null;
    const key = ["head", "path", "choice"].find(name => active?.dataset[name]);
    const value = key && CSS.escape(active.dataset[key]);
    const place = active?.closest(".heads, .roles, .choices, .drawing, .rows");
    this.selected = this.shown.path?.name ?? null;
    if (!this.info.static) { this.drawBar(); this.drawChoices(); }
    this.drawMaps();
    this.drawLook();
    this.drawRoles();
    this.drawDetails();
    this.drawCircuit();
    this.mark();
    if (key) place?.querySelector(`[data-${key}="${value}"]`)?.focus();
  }

  // The top: the loss of the circuit so far, and what can be done to the whole of it.

  makeBar() {
    this.loss = element("span", { className: "loss", title: this.info.loss_meaning });
    this.facts = soft("");
    this.said = element("div", { className: "said soft", role: "status" });
    const file = element("input", {
      type: "text", value: "circuit.json", ariaLabel: "file name",
      onkeydown: onEnter(() => this.ask("save", { path: file.value })),
    });
    const act = what => () => this.ask(what, what === "discover" ? this.searchOptions() : {});
    this.buttons = {
      undo: button("Undo", act("undo")), clear: button("Clear", act("clear")),
      discover: button("Discover", act("discover")), cancel: button("Cancel", act("cancel")),
      score: button("Score", () => this.ask("score", this.numbers("controls"))),
      save: button("Save", () => this.ask("save", { path: file.value })),
    };
    const { save, ...others } = this.buttons;
    return [element("div", { className: "top" },
      element("b", { textContent: this.info.name }), this.loss, this.facts,
      element("span", { className: "gap" }), ...Object.values(others), this.makeOptions(),
      element("span", { className: "together" }, file, save),
      element("div", { className: "task soft", textContent: this.info.description })), this.said];
  }

  // What bounds a search, and a score; what is left empty is the default.
  makeOptions() {
    this.options = {};
    const field = (name, label, properties = { type: "number", min: 1 }) => {
      this.options[name] = element("input", { ariaLabel: label, ...properties });
      return element("label", {}, `${label} `, this.options[name]);
    };
    return element("details", { className: "options" },
      element("summary", { textContent: "options" }), field("time", "seconds"),
      field("examples", "examples"), field("restarts", "starts"),
      field("heads", "heads", { type: "text", placeholder: "all" }),
      field("one_hot", "one-hot only", { type: "checkbox" }), field("controls", "random circuits"));
  }

  numbers(...names) {
    return Object.fromEntries(names.filter(name => this.options[name].value !== "")
      .map(name => [name, Number(this.options[name].value)]));
  }

  searchOptions() {
    const heads = this.options.heads.value.split(/[\s,]+/).filter(head => head);
    return { ...this.numbers("time", "examples", "restarts"), ...heads.length ? { heads } : {},
      one_hot: this.options.one_hot.checked };
  }

  drawBar() {
    const { info, state, buttons } = this;
    const good = state.loss !== null && state.loss < info.tolerance;
    this.loss.textContent = `${info.loss_name} ${lossText(state.loss)}`;
    this.loss.className = `loss ${good ? "good" : "bad"}`;
    this.facts.textContent = `${state.replaced} of ${counted(info.layers * info.heads, "head")} `
      + `replaced · intact ${lossText(state.intact)} · ${good ? "below" : "not below"} the `
      + `tolerance of ${Number(info.tolerance.toPrecision(4))}`;
    this.said.textContent = state.busy ? `${state.busy} …` : state.said;
    this.said.classList.toggle("failed", state.failed);
    for (const one of Object.values(buttons)) one.disabled = Boolean(state.busy);
    buttons.cancel.disabled = false;
    buttons.cancel.hidden = !(buttons.discover.hidden = state.searching);
    buttons.undo.disabled ||= !state.undoable;
    buttons.clear.disabled ||= !state.replaced;
  }

  // A small map of every head

  makeMaps() {
    this.maps = element("div", { className: "heads" });
    this.maps.style.gridTemplateColumns =
      `repeat(${this.info.heads > 1 ? this.info.heads : "auto-fill"}, 70px)`;
    return this.maps;
  }

  drawMaps() {
    const { layers, heads } = this.info, cells = [];
    for (let layer = 0; layer < layers; layer++) {
      const row = Array.from({ length: heads }, (_, head) => this.headButton(layer, head));
      // With several heads per layer, the first layer is at the bottom.
      if (heads > 1) cells.unshift(...row);
      else cells.push(...row);
    }
    this.maps.replaceChildren(...cells);
    const picked = this.maps.querySelector(".picked");
    this.maps.scrollTop = Math.max(0, picked.offsetTop - this.maps.offsetTop - 160);
  }

  headButton(layer, head) {
    const name = `L${layer}.H${head}`, { kind, paths } = this.state.heads[name];
    const { order } = this.info, weights = this.shown.by_role[layer][head];
    const map = element("canvas", { width: order.length, height: order.length });
    const pen = map.getContext("2d");
    order.forEach((dest, y) => order.forEach((src, x) => {
      const inside = paths.some(path => path[0] === dest && path[1] === src);
      pen.fillStyle = inside ? PATH : `rgba(${HEAT},${weights[dest][src] / 1000})`;
      pen.fillRect(x, y, 1, 1);
    }));
    const picked = name === this.current().name ? " picked" : "";
    const made = element("button", {
      className: `head${picked}${paths.length ? " paths" : ""}`, title: `${name}: ${kind}`,
      onclick: () => this.show({ layer, head, path: null }),
    }, map, element("div", { textContent: name }),
      element("div", { className: "kind", textContent: kind }));
    made.dataset.head = name;
    return made;
  }

  // The shown head on an example

  makeLook() {
    const pick = () => {
      const example = this.number.value === "" ? null : Number(this.number.value);
      if (example !== this.shown.example) this.show({ example });
    };
    this.number = element("input", {
      type: "number", min: 0, max: this.info.examples - 1, ariaLabel: "example",
      onchange: pick, onkeydown: onEnter(pick),
    });
    this.withCircuit = element("input", {
      type: "checkbox", onchange: () => this.show({ with_circuit: this.withCircuit.checked }),
    });
    const label = element("label", { title: "attention after the circuit's replacements" },
      this.withCircuit, " with the circuit in place");
    this.lookTitle = element("h4");
    this.chains = element("div", { className: "row" });
    return panel("look", this.lookTitle, element("div", { className: "row" },
      element("label", {}, "example ", this.number), ...this.info.static ? [] : [label]),
      this.chains, ...this.example.parts);
  }

  drawLook() {
    const { chains, tokens, example, with_circuit } = this.shown;
    this.lookTitle.textContent = `${this.current().name}, `
      + `${with_circuit ? "with the circuit" : "intact model"}: rows attend to columns`;
    this.number.value = example;
    this.withCircuit.checked = with_circuit;
    const pick = (chain, title) => button(tokenOf(title),
      () => { this.chain = chain; this.drawLook(); },
      { title, className: chain === this.chain ? "on" : "" });
    this.chains.replaceChildren("chain of ", ...chains.map((positions, chain) =>
      pick(chain, tokens[positions.find(at => at >= 0) ?? 0])), pick(-1, "all"));
    this.example.draw();
  }

  // The paths of the shown head as a table of roles, and what is known of the selected one

  makePaths() {
    this.rolesTitle = element("h4");
    this.roles = element("table", { className: "roles" });
    this.details = element("div", { className: "details" });
    return panel("edit", this.rolesTitle,
      element("div", { className: "scrolled" }, this.roles), this.details);
  }

  drawRoles() {
    const { order, roles, labels, symbols } = this.info;
    this.rolesTitle.textContent = `Paths of ${this.current().name}: a role (row) attends to another`;
    const header = order.map(src => element("th", { title: labels[src] },
      ...symbols[src] === roles[src] ? [] : [symbols[src], element("br")], roles[src]));
    const long = dest => labels[dest] === roles[dest] ? "" : ` ${labels[dest]}`;
    this.roles.replaceChildren(element("tr", {}, element("th"), ...header),
      ...order.map(dest => element("tr", {},
        element("th", { textContent: roles[dest], title: labels[dest] },
          element("span", { className: "long", textContent: long(dest) })),
        ...order.map(src => element("td", {}, this.roleButton(dest, src))))));
  }

  roleButton(dest, src) {
    const { order, labels } = this.info, { layer, head, by_role } = this.shown;
    const weight = by_role[layer][head][dest][src] / 1000, path = this.pathName(dest, src);
    const inside = this.current().paths.some(one => one[0] === dest && one[1] === src);
    const later = order.indexOf(src) > order.indexOf(dest);
    const made = button(weight >= .05 ? weight.toFixed(2).replace(/^0/, "") : "",
      () => this.click(path), {
        className: `${weight > .55 ? "hot" : ""}${inside ? " in" : ""}`,
        title: `${labels[dest]} from ${labels[src]}: ${weight.toFixed(3)}`,
        disabled: later && weight === 0 && !inside, ariaPressed: String(inside),
      });
    made.style.setProperty("--w", weight);
    made.dataset.path = path;
    return made;
  }

  drawDetails() {
    const { info, shown: { path } } = this;
    if (!path) {
      const hint = info.static ? "" : ", and a click on the selected one adds it or takes it out";
      this.details.replaceChildren(
        soft(`A click on a path, here or in the circuit, shows what it is worth${hint}.`));
      return;
    }
    const [dest, src] = this.ends(path.name);
    const inside = this.current().paths.some(one => one[0] === dest && one[1] === src);
    const facts = [
      ["mean attention", path.attention?.toFixed(3)],
      [`${info.loss_name}, removed from the circuit`, path.ablated_loss?.toFixed(4)],
      [`${info.loss_name} with it`, path.added_loss?.toFixed(4)],
      [`${info.loss_name}, cut live`, path.live_loss?.toFixed(4)],
      ["", path.does], ["", path.note],
    ].filter(([, value]) => value);
    this.details.replaceChildren(
      element("div", {}, element("b", { textContent: path.name }), " ", soft(path.meaning)),
      element("dl", {}, ...facts.flatMap(([name, value]) => [
        element("dt", { textContent: name }),
        element("dd", { textContent: value, className: name ? "" : "all" })])));
    if (!info.static && !path.note)
      this.details.append(button(inside ? "Take it out" : "Add it",
        () => this.ask("toggle", { path: path.name })));
  }

  // Plausible mechanisms of the shown head

  makeChoices() {
    this.choices = element("div", { className: "choices" });
    return panel("mechanism", `Mechanism, and the ${this.info.loss_name} it would give`,
      this.choices);
  }

  drawChoices() {
    this.choices.replaceChildren(...this.shown.choices.flatMap(choice => {
      const made = button(choice.name, () => this.ask("suppose", { line: choice.line }),
        { className: choice.chosen ? "on" : "", title: choice.line });
      made.dataset.choice = choice.name;
      return [made, element("span", { textContent: lossText(choice.loss) }), soft(choice.paths)];
    }));
  }

  // The circuit: its drawing, its paths, and files of it that are made in the page

  makeCircuit() {
    const file = (kind, name, type, text) => button(kind, () => download(name, type, text()));
    this.drawing = element("div", { className: "drawing" });
    this.drawing.onclick = event => this.clickArrow(event);
    this.drawing.onkeydown = event => {
      if (event.key === "Enter" || event.key === " ") this.clickArrow(event);
    };
    this.legend = element("div", { className: "legend soft" });
    this.rows = element("div", { className: "rows" });
    return panel("circuit", this.info.static ? "The circuit" : "The circuit so far", this.drawing,
      this.legend, this.rows, element("div", { className: "row downloads" }, "Download",
        file("JSON", "circuit.json", "application/json", () => this.state.json),
        file("CSV", "paths.csv", "text/csv", () => this.csv()),
        file("SVG", "circuit.svg", "image/svg+xml", () => this.state.drawing)));
  }

  clickArrow(event) {
    const arrow = event.target.closest("[data-path]");
    if (!arrow) return;
    event.stopPropagation();
    event.preventDefault();
    this.select(arrow.dataset.path);
  }

  drawCircuit() {
    if (this.state.drawing !== this.source) {
      this.source = this.state.drawing;
      this.drawing.innerHTML = this.source;
      for (const arrow of this.drawing.querySelectorAll("[data-path]"))
        Object.assign(arrow, { tabIndex: 0, role: "button" });
      // Narrow pages scroll a wide drawing rather than make its letters too small.
      const svg = this.drawing.querySelector("svg");
      svg.style.setProperty("--natural", `${svg.viewBox.baseVal.width}px`);
      const said = [[".arrow", "An arrow is a path: what its head moves from role to role."],
        [".arrow > text", `Its number is the ${this.info.loss_name} when it is removed from the `
          + "circuit; wider arrows cost more."],
        [".arrow [stroke-dasharray]", "Dashed paths only enable: the circuit does without them, "
          + "the intact model does not."]];
      this.legend.textContent = this.info.static ? "" : said
        .filter(([part]) => this.drawing.querySelector(part)).map(([, text]) => text).join(" ");
    }
    const header = [["path", ""], ["attention", "mean attention"],
      ["removed", "loss when the path is removed from the circuit"],
      ["cut live", "loss when the path is cut in the intact model"]];
    const table = element("table", {},
      element("thead", {}, element("tr", {}, ...header.map(([text, title]) =>
        element("th", { scope: "col", title }, button(text))))),
      element("tbody", {}, ...this.state.rows.map(row => this.circuitRow(row))));
    this.rows.replaceChildren(...this.state.rows.length ? [table] : []);
    makeSortable(table);
  }

  circuitRow(row) {
    const made = element("tr", { onclick: () => this.select(row.name) },
      element("td", {}, button(row.name, null, { title: row.meaning })),
      ...[row.attention.toFixed(2), row.ablated_loss?.toFixed(4), row.live_loss?.toFixed(4)]
        .map(text => element("td", { textContent: text ?? "–" })));
    made.dataset.path = made.querySelector("button").dataset.path = row.name;
    return made;
  }

  csv() {
    const { loss_name } = this.info;
    const header = ["path", "meaning", "mean attention",
      `${loss_name} removed from the circuit`, `${loss_name} cut live`, "what it does"];
    const keys = ["name", "meaning", "attention", "ablated_loss", "live_loss", "does"];
    const cell = value => `"${String(value ?? "").replaceAll('"', '""')}"`;
    return [header, ...this.state.rows.map(row => keys.map(key => row[key]))]
      .map(line => line.map(cell).join(",") + "\r\n").join("");
  }
}
