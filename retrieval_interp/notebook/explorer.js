// The page of the explorer. It displays Python's state and sends messages; of its own it keeps only
// which chain is highlighted.

const MARGIN = 34, HEAT = "47,111,190", PATH = "#e0862b";

function render({ model, el }) {
  const page = new Page(model);
  el.append(page.root);
  page.drawState();
  page.drawShown();
  return page.listen();
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
  constructor(model) {
    this.model = model;
    this.info = model.get("model_info");
    this.chain = 0; // -1: no chain is highlighted
    this.size = 12; // of a position of the example, in pixels
    this.root = element("div", { className: "ri-explorer" },
      this.makeTop(), this.makeSaid(),
      element("h4", { textContent: "Heads, by mean attention of role to role" }), this.makeHeads(),
      element("div", { className: "panels" }, this.makeExample(), this.makePaths()),
      element("h4", { textContent: "The circuit so far" }), this.makeDrawing());
  }

  // Python's state, and messages to Python

  get state() { return this.model.get("state"); }
  get shown() { return this.model.get("shown"); }

  ask(what, more = {}) { this.model.send({ do: what, ...more }); }

  show(change) {
    const { layer, head, example, with_circuit } = this.shown;
    this.ask("show", { layer, head, example, with_circuit, ...change });
  }

  pathName(head, dest, src, relation = "own") {
    const of = relation === "own" ? "" : `${relation}.`;
    return `${head} ${this.info.roles[dest]}<-${of}${this.info.roles[src]}`;
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
    this.discover = button("Discover", () => { this.say("searching …"); this.ask("discover"); });
    const saveNow = () => this.ask("save", { path: file.value });
    const file = element("input", {
      type: "text", value: "circuit.json", ariaLabel: "file name", onkeydown: onEnter(saveNow),
    });
    this.save = button("Save", saveNow);
    return element("div", { className: "top" },
      element("b", { textContent: this.info.name }), this.loss, this.facts,
      element("span", { className: "gap" }), this.undo, this.clear, this.discover,
      element("span", { className: "together" }, file, this.save));
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

  makeExample() {
    const pick = () => {
      const wanted = this.example.value === "" ? null : Number(this.example.value);
      if (wanted !== this.shown.example) this.show({ example: wanted });
    };
    this.title = element("h4");
    this.example = element("input", {
      type: "number", min: 0, max: this.info.examples - 1, ariaLabel: "example",
      onchange: pick, onkeydown: onEnter(pick),
    });
    this.withCircuit = element("input", {
      type: "checkbox", onchange: () => this.show({ with_circuit: this.withCircuit.checked }),
    });
    this.chains = element("div", { className: "row" });
    this.canvas = element("canvas", {
      className: "example",
      onmousemove: event => this.hoverExample(event), onclick: event => this.clickExample(event),
    });
    this.hover = element("div", { className: "hover soft" });
    return element("div", {}, this.title,
      element("div", { className: "row" },
        element("label", {}, "example ", this.example),
        element("label", { title: "attention after the circuit's replacements" },
          this.withCircuit, " with the circuit in place")),
      this.chains, this.canvas, this.hover);
  }

  makePaths() {
    this.roleTable = element("table", { className: "roles" });
    this.choices = element("div", { className: "choices" });
    return element("div", {},
      element("h4", { textContent: "Paths: click a source (column) of a role (row)" }),
      this.roleTable,
      element("h4", { textContent: `Mechanism, and the ${this.info.loss_name} it would give` }),
      this.choices);
  }

  makeDrawing() {
    this.drawing = element("div", { className: "drawing" });
    return this.drawing;
  }

  // Redraws on every change of Python's state; returns a function that stops that.
  listen() {
    const drawn = { "change:state": () => this.drawState(), "change:shown": () => this.drawShown() };
    for (const [change, draw] of Object.entries(drawn)) this.model.on(change, draw);
    // The canvas uses the page's colours, which change with the theme.
    const repaint = () => this.drawExample();
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

  say(text, failed = false) {
    this.said.textContent = text;
    this.said.classList.toggle("failed", failed);
    const busy = text.endsWith("…");
    for (const button of [this.undo, this.clear, this.discover, this.save]) button.disabled = busy;
  }

  // Redrawing replaces the buttons; keyboard users keep their focus.
  keepFocus(draw, ...attributes) {
    const active = this.root.contains(document.activeElement) ? document.activeElement : null;
    const found = attributes.find(attribute => active?.dataset[attribute]);
    const value = found && active.dataset[found];
    draw();
    if (value) this.root.querySelector(`[data-${found}="${CSS.escape(value)}"]`)?.focus();
  }

  drawState() {
    const { info, state } = this;
    const good = state.loss !== null && state.loss < info.tolerance;
    this.loss.textContent = `${info.loss_name} ${lossText(state.loss)}`;
    this.loss.className = `loss ${good ? "good" : "bad"}`;
    this.facts.textContent = `${state.replaced} of ${info.layers * info.heads} heads replaced · `
      + `intact ${lossText(state.intact)} · ${good ? "below" : "not below"} ${info.tolerance}`;
    this.say(state.busy ? `${state.busy} …` : state.said, state.failed);
    this.example.value = this.shown.example;
    if (!state.undoable) this.undo.disabled = true;
    if (!state.replaced) this.clear.disabled = true;
    this.drawing.innerHTML = state.drawing;
    this.drawHeadsAndRoles();
    this.drawExample();
  }

  drawShown() {
    const { shown } = this;
    this.title.textContent = `${this.current().label}, `
      + `${shown.with_circuit ? "with the circuit" : "intact model"}: rows attend to columns`;
    this.example.value = shown.example;
    this.withCircuit.checked = shown.with_circuit;
    this.drawChains();
    this.keepFocus(() => this.drawChoices(), "choice");
    this.drawHeadsAndRoles();
    this.drawExample();
  }

  drawHeadsAndRoles() {
    this.keepFocus(() => { this.drawHeads(); this.drawRoles(); }, "head", "path");
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
        element("span", { className: "soft", textContent: choice.paths })];
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
      onclick: () => this.show({ layer, head }),
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
    const header = element("tr", {}, element("th"),
      ...order.map(src => element("th", { title: labels[src] },
        ...(symbols[src] === roles[src] ? [] : [symbols[src], element("br")]), roles[src])));
    this.roleTable.replaceChildren(header, ...order.map(dest => element("tr", {},
      element("th", { textContent: roles[dest], title: labels[dest] }),
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
      onclick: () => this.ask("toggle", { path }),
    });
    button.style.setProperty("--w", weight);
    button.dataset.path = path;
    button.ariaPressed = String(inside);
    return button;
  }

  // The example, on a canvas

  drawExample() {
    const n = this.shown.tokens.length, ratio = window.devicePixelRatio || 1;
    this.size = Math.max(5, Math.min(16, Math.floor(440 / n)));
    const side = MARGIN + n * this.size + 2;
    Object.assign(this.canvas, { width: side * ratio, height: side * ratio });
    Object.assign(this.canvas.style, { width: `${side}px`, height: `${side}px` });
    const pen = this.canvas.getContext("2d"), ink = getComputedStyle(this.root).color;
    pen.scale(ratio, ratio);
    const own = this.chain < 0 ? null : new Set(this.shown.chains[this.chain] ?? []);
    this.paintTokens(pen, ink, own);
    this.paintPattern(pen, ink, own);
    this.paintPaths(pen);
  }

  paintTokens(pen, ink, own) {
    const { size } = this;
    pen.font = `${Math.min(11, size - 1)}px system-ui, sans-serif`;
    pen.fillStyle = ink;
    pen.textBaseline = "middle";
    this.shown.tokens.forEach((token, i) => {
      const middle = MARGIN + (i + .5) * size;
      pen.globalAlpha = !own || own.has(i) ? 1 : .35;
      pen.textAlign = "right";
      pen.fillText(token.slice(0, 6), MARGIN - 3, middle);
      pen.save();
      pen.translate(middle, MARGIN - 3);
      pen.rotate(-Math.PI / 2);
      pen.textAlign = "left";
      pen.fillText(token.slice(0, 6), 0, 0);
      pen.restore();
    });
    pen.globalAlpha = 1;
  }

  paintPattern(pen, ink, own) {
    const { size } = this, { pattern } = this.shown, side = pattern.length * size;
    pen.fillStyle = "rgba(224,134,43,.13)";
    for (const i of own ?? []) {
      pen.fillRect(MARGIN, MARGIN + i * size, side, size);
      pen.fillRect(MARGIN + i * size, MARGIN, size, side);
    }
    pattern.forEach((row, dest) => row.forEach((weight, src) => {
      if (!weight) return;
      const strength = !own || own.has(dest) ? 1 : .35;
      pen.fillStyle = `rgba(${HEAT},${weight / 1000 * strength})`;
      pen.fillRect(MARGIN + src * size, MARGIN + dest * size, size, size);
    }));
    pen.strokeStyle = ink;
    pen.globalAlpha = .3;
    pen.strokeRect(MARGIN - .5, MARGIN - .5, side + 1, side + 1);
    pen.globalAlpha = 1;
  }

  paintPaths(pen) {
    const { size } = this, { isIn } = this.current();
    pen.strokeStyle = PATH;
    pen.lineWidth = 2;
    this.shown.chains.forEach((positions, number) => {
      if (this.chain >= 0 && number !== this.chain) return;
      positions.forEach((at, dest) => positions.forEach((from, src) => {
        if (at >= 0 && from >= 0 && isIn(dest, src))
          pen.strokeRect(MARGIN + from * size + 1, MARGIN + at * size + 1, size - 2, size - 2);
      }));
    });
  }

  // The two positions under the pointer, with their chains and roles if they have any.
  under(event) {
    const box = this.canvas.getBoundingClientRect(), n = this.shown.tokens.length;
    const scale = (MARGIN + n * this.size + 2) / box.width;
    const cell = (offset, edge) => Math.floor(((offset - edge) * scale - MARGIN) / this.size);
    const src = cell(event.clientX, box.left), dest = cell(event.clientY, box.top);
    if (src < 0 || dest < 0 || src >= n || dest >= n) return null;
    const to = this.roleOf(dest), from = this.roleOf(src);
    return { src, dest, to, from, together: to && from && to.chain === from.chain };
  }

  roleOf(position) {
    for (const [chain, positions] of this.shown.chains.entries()) {
      const role = positions.indexOf(position);
      if (role >= 0) return { chain, role };
    }
    return null;
  }

  hoverExample(event) {
    const at = this.under(event);
    if (!at) { this.hover.textContent = ""; return; }
    const { tokens, pattern } = this.shown, { roles } = this.info;
    const weight = (pattern[at.dest][at.src] / 1000).toFixed(3);
    this.hover.textContent = `${tokens[at.dest]} attends to ${tokens[at.src]}: ${weight}`
      + (at.together ? ` (${roles[at.to.role]}<-${roles[at.from.role]})` : "");
  }

  // The first click highlights a chain, later ones toggle its paths.
  clickExample(event) {
    const at = this.under(event);
    if (!at || !at.to) return;
    if (this.chain !== at.to.chain) {
      this.chain = at.to.chain;
      this.drawShown();
    } else if (at.together) {
      const path = this.pathName(this.current().label, at.to.role, at.from.role);
      this.ask("toggle", { path });
    }
  }
}

export default { render };
