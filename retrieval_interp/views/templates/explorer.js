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

const headName = (layer, head) => `L${layer}.H${head}`;
const lossText = loss => loss === null ? "–" : loss.toFixed(4);

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
    this.root = element("div", { className: "ri-explorer" },
      element("div", { className: "wide" },
        ...this.info.frozen ? [] : [this.makeTop(), this.makeSaid()],
        element("h4", { textContent: "Heads, by mean attention of role to role" }), this.makeHeads(),
        element("div", { className: "panels" },
          this.makeLook(), this.makePaths(), this.makeCircuit())));
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

  pathName(head, dest, src, relation = "own") {
    const of = relation === "own" ? "" : `${relation}.`;
    return `${head} ${this.info.roles[dest]}<-${of}${this.info.roles[src]}`;
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
    this.show({ layer, head, path });
  }

  // Everything that stands for the selected path.
  mark() {
    for (const one of this.scope.querySelectorAll("[data-path]"))
      one.classList.toggle("selected", one.dataset.path === this.selected);
  }

  // The selected head: its name, and whether a path is in the circuit.
  current() {
    const label = headName(this.shown.layer, this.shown.head), { paths } = this.state.heads[label];
    return { label, isIn: (dest, src) => paths.some(p => p[0] === dest && p[1] === src && p[2] === "own") };
  }

  // Building, once

  makeTop() {
    const button = (textContent, onclick) => element("button", { textContent, onclick });
    this.loss = element("span", { className: "loss" });
    this.facts = element("span", { className: "soft" });
    this.undo = button("Undo", () => this.ask("undo"));
    this.clear = button("Clear", () => this.ask("clear"));
    this.discover = button("Discover", () => {
      this.say("searching …", false, true);
      this.ask("discover", this.searchOptions());
    });
    this.cancel = button("Cancel", () => { this.cancel.disabled = true; this.ask("cancel"); });
    this.cancel.hidden = true;
    this.score = button("Score", () => {
      const controls = this.options.controls.value;
      this.say("scoring …");
      this.ask("score", controls === "" ? {} : { controls: Number(controls) });
    });
    const saveNow = () => this.ask("save", { path: file.value });
    const file = element("input", {
      type: "text", value: "circuit.json", ariaLabel: "file name", onkeydown: onEnter(saveNow),
    });
    this.save = button("Save", saveNow);
    return element("div", { className: "top" },
      element("b", { textContent: this.info.name }), this.loss, this.facts,
      element("span", { className: "gap" }), this.undo, this.clear, this.discover,
      this.cancel, this.score, this.makeOptions(),
      element("span", { className: "together" }, file, this.save));
  }

  // What bounds a search, and a score; what is left empty is the default.
  makeOptions() {
    const field = (name, label, properties) => {
      this.options[name] = element("input", { ariaLabel: label, ...properties });
      return element("label", {}, `${label} `, this.options[name]);
    };
    const number = (name, label) => field(name, label, { type: "number", min: 1 });
    this.options = {};
    return element("details", { className: "options" },
      element("summary", { textContent: "options" }),
      number("time", "seconds"), number("examples", "examples"), number("restarts", "starts"),
      field("heads", "heads", { type: "text", placeholder: "all" }),
      field("one_hot", "one-hot only", { type: "checkbox" }),
      number("controls", "random circuits"));
  }

  searchOptions() {
    const { time, examples, restarts, heads, one_hot } = this.options, found = {};
    for (const [name, { value }] of Object.entries({ time, examples, restarts }))
      if (value !== "") found[name] = Number(value);
    const chosen = heads.value.split(/[\s,]+/).filter(head => head);
    if (chosen.length) found.heads = chosen;
    return { ...found, one_hot: one_hot.checked };
  }

  makeSaid() {
    this.said = element("div", { className: "said soft" });
    this.said.setAttribute("role", "status");
    return this.said;
  }

  makeHeads() {
    const columns = this.info.heads > 1 ? this.info.heads : "auto-fill";
    this.heads = element("div", { className: "heads" });
    this.heads.style.gridTemplateColumns = `repeat(${columns}, 70px)`;
    return this.heads;
  }

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
    const { frozen, loss_name } = this.info;
    this.pathsTitle = element("h4");
    this.roleTable = element("table", { className: "roles" });
    this.details = element("div", { className: "details" });
    this.choices = element("div", { className: "choices" });
    return element("div", { className: "edit" }, this.pathsTitle, this.roleTable, this.details,
      ...frozen ? [] : [
        element("h4", { textContent: `Mechanism, and the ${loss_name} it would give` }),
        this.choices]);
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
    this.rows = element("div", { className: "rows" });
    return element("div", { className: "circuit" },
      element("h4", { textContent: this.info.frozen ? "The circuit" : "The circuit so far" }),
      this.drawing, this.rows, downloads);
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

  say(text, failed = false, searching = false) {
    if (this.info.frozen) return;
    if (!searching) this.cancel.disabled = false;
    this.cancel.hidden = !searching;
    this.discover.hidden = searching;
    this.said.textContent = text;
    this.said.classList.toggle("failed", failed);
    const busy = text.endsWith("…");
    for (const button of [this.undo, this.clear, this.discover, this.score, this.save])
      button.disabled = busy;
  }

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
    const { info, state } = this;
    if (!info.frozen) {
      const good = state.loss !== null && state.loss < info.tolerance;
      this.loss.textContent = `${info.loss_name} ${lossText(state.loss)}`;
      this.loss.className = `loss ${good ? "good" : "bad"}`;
      this.facts.textContent = `${state.replaced} of ${info.layers * info.heads} heads replaced · `
        + `intact ${lossText(state.intact)} · ${good ? "below" : "not below"} the tolerance of `
        + `${Number(info.tolerance.toPrecision(4))}`;
      const searching = Boolean(state.busy) && state.busy !== "scoring";
      this.say(state.busy ? `${state.busy} …` : state.said, state.failed, searching);
      if (!state.undoable) this.undo.disabled = true;
      if (!state.replaced) this.clear.disabled = true;
    }
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
    this.keepFocus(() => this.drawChoices(), "choice");
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
    }
    this.mark();
  }

  drawRows() {
    const { rows } = this.state, loss = this.info.loss_name;
    if (!rows.length) { this.rows.replaceChildren(); return; }
    const header = ["path", "attention", `${loss}, ablated too`, `${loss}, cut live`];
    const table = element("table", {},
      element("thead", {}, element("tr", {}, ...header.map(text =>
        element("th", { scope: "col" }, element("button", { textContent: text }))))),
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
    this.keepFocus(() => { this.drawHeads(); this.drawRoles(); }, "head", "path");
    this.mark();
  }

  drawChains() {
    const pick = (number, textContent) => element("button", {
      textContent, className: number === this.chain ? "on" : "",
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

  drawHeads() {
    const { info } = this, layers = [...Array(info.layers).keys()], cells = [];
    // With several heads per layer, the first layer is at the bottom.
    for (const layer of info.heads > 1 ? layers.reverse() : layers)
      for (let head = 0; head < info.heads; head++) cells.push([layer, head]);
    this.heads.replaceChildren(...cells.map(([layer, head]) => this.headButton(layer, head)));
    const picked = this.heads.querySelector(".picked");
    if (picked)
      this.heads.scrollTop = Math.max(0, picked.offsetTop - this.heads.offsetTop - 160);
  }

  headButton(layer, head) {
    const label = headName(layer, head), { kind, paths } = this.state.heads[label];
    const picked = layer === this.shown.layer && head === this.shown.head;
    const button = element("button", {
      className: `head${picked ? " picked" : ""}${paths.length ? " paths" : ""}`,
      title: `${label}: ${kind} ${paths.map(path => this.pathName("", ...path)).join(" ")}`,
      onclick: () => this.show({ layer, head, path: null }),
    }, this.headMap(this.shown.by_role[layer][head], paths),
      element("div", { textContent: label }),
      element("div", { className: "kind", textContent: kind }));
    button.dataset.head = label;
    return button;
  }

  headMap(weights, paths) {
    const { order } = this.info;
    const map = element("canvas", { width: order.length, height: order.length });
    const pen = map.getContext("2d");
    order.forEach((dest, y) => order.forEach((src, x) => {
      pen.fillStyle = `rgba(${HEAT},${weights[dest][src] / 1000})`;
      pen.fillRect(x, y, 1, 1);
    }));
    pen.fillStyle = PATH;
    for (const [dest, src] of paths) pen.fillRect(order.indexOf(src), order.indexOf(dest), 1, 1);
    return map;
  }

  drawRoles() {
    const { order, roles, labels, symbols } = this.info;
    this.pathsTitle.textContent = `Paths of ${this.current().label}: a role (row) attends to another`;
    const header = element("tr", {}, element("th"),
      ...order.map(src => element("th", { title: labels[src] },
        ...(symbols[src] === roles[src] ? [] : [symbols[src], element("br")]), roles[src])));
    this.roleTable.replaceChildren(header, ...order.map(dest => element("tr", {},
      element("th", { textContent: roles[dest], title: labels[dest] }, element("span", {
        className: "long", textContent: labels[dest] === roles[dest] ? "" : ` ${labels[dest]}` })),
      ...order.map(src => element("td", {}, this.pathButton(dest, src))))));
  }

  pathButton(dest, src) {
    const { order, labels } = this.info, { layer, head, by_role } = this.shown;
    const { label, isIn } = this.current(), path = this.pathName(label, dest, src);
    const weight = by_role[layer][head][dest][src] / 1000, inside = isIn(dest, src);
    const later = order.indexOf(src) > order.indexOf(dest);
    const button = element("button", {
      className: `${weight > .55 ? "hot" : ""}${inside ? " in" : ""}`,
      textContent: weight >= .05 ? weight.toFixed(2).replace(/^0/, "") : "",
      title: `${labels[dest]} from ${labels[src]}: ${weight.toFixed(3)}`,
      disabled: later && weight === 0 && !inside,
      onclick: () => this.click(path),
    });
    button.style.setProperty("--w", weight);
    button.dataset.path = path;
    button.ariaPressed = String(inside);
    return button;
  }
}
