// The page of the explorer. It shows what Python says and asks by messages; it keeps no state of
// the circuit, only what is looked at: the chain whose positions stand out.

const MARGIN = 34, HEAT = "47,111,190", PATH = "#e0862b";

function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

function render({ model, el }) {
  const info = model.get("model_info");
  const order = info.order, roles = info.roles;
  let chain = 0; // -1: no chain stands out
  const ask = (what, more = {}) => model.send({ do: what, ...more });
  const show = change => {
    const { layer, head, example, with_circuit } = model.get("shown");
    ask("show", { layer, head, example, with_circuit, ...change });
  };
  const number = loss => loss === null ? "–" : loss.toFixed(4);
  // Buttons are made anew; whoever uses the keyboard stays where they were.
  const keepFocus = (draw, ...attributes) => {
    const active = root.contains(document.activeElement) ? document.activeElement : null;
    const found = attributes.find(attribute => active?.dataset[attribute]);
    const value = found && active.dataset[found];
    draw();
    if (value) root.querySelector(`[data-${found}="${CSS.escape(value)}"]`)?.focus();
  };
  const name = (layer, head) => `L${layer}.H${head}`;
  const pathName = (head, dest, src) => `${head} ${roles[dest]}<-${roles[src]}`;

  // The line on top

  const loss = element("span", { className: "loss" });
  const facts = element("span", { className: "soft" });
  const undo = element("button", { textContent: "Undo", onclick: () => ask("undo") });
  const clear = element("button", { textContent: "Clear", onclick: () => ask("clear") });
  const discover = element("button", {
    textContent: "Discover",
    onclick: () => { say("searching …"); ask("discover"); },
  });
  const onEnter = action => event => {
    if (event.key !== "Enter") return;
    event.stopPropagation(); // in JupyterLab the notebook takes it
    event.preventDefault();
    action();
  };
  const saveNow = () => ask("save", { path: file.value });
  const file = element("input", {
    type: "text", value: "circuit.json", ariaLabel: "file name", onkeydown: onEnter(saveNow),
  });
  const save = element("button", { textContent: "Save", onclick: saveNow });
  const said = element("div", { className: "said soft" });
  said.setAttribute("role", "status");

  // The panels

  const heads = element("div", { className: "heads" });
  heads.style.gridTemplateColumns = `repeat(${info.heads > 1 ? info.heads : "auto-fill"}, 70px)`;
  const title = element("h4");
  const example = element("input", {
    type: "number", min: 0, max: info.examples - 1, ariaLabel: "example",
    onchange: () => pickExample(), onkeydown: onEnter(() => pickExample()),
  });
  const pickExample = () => {
    const wanted = example.value === "" ? null : Number(example.value);
    if (wanted !== model.get("shown").example) show({ example: wanted });
  };
  const living = element("input", {
    type: "checkbox", onchange: () => show({ with_circuit: living.checked }),
  });
  const chains = element("div", { className: "row" });
  const canvas = element("canvas", { className: "example" });
  const hover = element("div", { className: "hover soft" });
  const roleTable = element("table", { className: "roles" });
  const choices = element("div", { className: "choices" });
  const drawing = element("div", { className: "drawing" });

  const panel = (...children) => element("div", {}, ...children);
  const root = element("div", { className: "ri-explorer" },
    element("div", { className: "top" },
      element("b", { textContent: info.name }), loss, facts, element("span", { className: "gap" }),
      undo, clear, discover, element("span", { className: "together" }, file, save)),
    said,
    element("h4", { textContent: "Heads, by mean attention of role to role" }), heads,
    element("div", { className: "panels" },
      panel(title,
        element("div", { className: "row" },
          element("label", {}, "example ", example),
          element("label", { title: "attention after the circuit's replacements" }, living,
            " with the circuit in place")),
        chains, canvas, hover),
      panel(element("h4", { textContent: "Paths: click a source (column) of a role (row)" }),
        roleTable,
        element("h4", { textContent: `Mechanism, and the ${info.loss_name} it would give` }),
        choices)),
    element("h4", { textContent: "The circuit so far" }), drawing);
  el.append(root);

  // Drawing what Python says

  function say(text, failed = false) {
    said.textContent = text;
    said.classList.toggle("failed", failed);
    const busy = text.endsWith("…");
    for (const button of [undo, clear, discover, save]) button.disabled = busy;
  }

  function drawState() {
    const state = model.get("state");
    loss.textContent = `${info.loss_name} ${number(state.loss)}`;
    const good = state.loss !== null && state.loss < info.tolerance;
    loss.className = `loss ${good ? "good" : "bad"}`;
    facts.textContent = `${state.replaced} of ${info.layers * info.heads} heads replaced · intact `
      + `${number(state.intact)} · ${good ? "below" : "not below"} ${info.tolerance}`;
    say(state.busy ? `${state.busy} …` : state.said, state.failed);
    example.value = model.get("shown").example;
    if (!state.undoable) undo.disabled = true;
    if (!state.replaced) clear.disabled = true;
    drawing.innerHTML = state.drawing;
    keepFocus(() => { drawHeads(); drawRoles(); }, "head", "path");
    drawExample();
  }

  function drawHeads() {
    const state = model.get("state"), shown = model.get("shown");
    const rows = [...Array(info.layers).keys()];
    const cells = [];
    // Several heads: layers upwards, as a residual stream is drawn. One head a layer: in order.
    for (const layer of info.heads > 1 ? rows.reverse() : rows)
      for (let head = 0; head < info.heads; head++) cells.push([layer, head]);
    heads.replaceChildren(...cells.map(([layer, head]) => {
      const label = name(layer, head), { kind, paths } = state.heads[label];
      const map = element("canvas", { width: order.length, height: order.length });
      const pen = map.getContext("2d"), weights = shown.by_role[layer][head];
      order.forEach((dest, y) => order.forEach((src, x) => {
        pen.fillStyle = `rgba(${HEAT},${weights[dest][src] / 1000})`;
        pen.fillRect(x, y, 1, 1);
      }));
      for (const [dest, src] of paths) {
        pen.fillStyle = PATH;
        pen.fillRect(order.indexOf(src), order.indexOf(dest), 1, 1);
      }
      const picked = layer === shown.layer && head === shown.head;
      const button = element("button", {
        className: `head${picked ? " picked" : ""}${paths.length ? " paths" : ""}`,
        title: `${label}: ${kind} ${paths.map(p => pathName("", ...p)).join(" ")}`,
        onclick: () => show({ layer, head }),
      }, map, element("div", { textContent: label }),
        element("div", { className: "kind", textContent: kind }));
      button.dataset.head = label;
      return button;
    }));
    const picked = heads.querySelector(".picked");
    if (picked) heads.scrollTop = Math.max(0, picked.offsetTop - heads.offsetTop - 160);
  }

  function current() {
    const shown = model.get("shown"), label = name(shown.layer, shown.head);
    const { paths } = model.get("state").heads[label];
    return { shown, label, isIn: (dest, src) => paths.some(p => p[0] === dest && p[1] === src) };
  }

  function drawRoles() {
    const { shown, label, isIn } = current();
    const weights = shown.by_role[shown.layer][shown.head];
    const header = element("tr", {}, element("th"),
      ...order.map(src => element("th", { title: info.labels[src] },
        ...(info.symbols[src] === roles[src] ? [] : [info.symbols[src], element("br")]),
        roles[src])));
    const place = role => order.indexOf(role);
    roleTable.replaceChildren(header, ...order.map(dest => element("tr", {},
      element("th", { textContent: roles[dest], title: info.labels[dest] }),
      ...order.map(src => {
        const weight = weights[dest][src] / 1000, inside = isIn(dest, src);
        const button = element("button", {
          className: `${weight > .55 ? "hot" : ""}${inside ? " in" : ""}`,
          textContent: weight >= .05 ? weight.toFixed(2).replace(/^0/, "") : "",
          title: `${info.labels[dest]} from ${info.labels[src]}: ${weight.toFixed(3)}`,
          disabled: place(src) > place(dest) && weight === 0 && !inside,
          onclick: () => ask("toggle", { path: pathName(label, dest, src) }),
        });
        button.style.setProperty("--w", weight);
        button.dataset.path = pathName(label, dest, src);
        button.ariaPressed = String(inside);
        return element("td", {}, button);
      }))));
  }

  function roleOf(position, shown) {
    for (const [number, positions] of shown.chains.entries()) {
      const role = positions.indexOf(position);
      if (role >= 0) return { chain: number, role };
    }
    return null;
  }

  let size = 12;
  function drawExample() {
    const { shown, isIn } = current();
    const tokens = shown.tokens, n = tokens.length, ratio = window.devicePixelRatio || 1;
    size = Math.max(5, Math.min(16, Math.floor(440 / n)));
    const side = MARGIN + n * size + 2;
    Object.assign(canvas, { width: side * ratio, height: side * ratio });
    Object.assign(canvas.style, { width: `${side}px`, height: `${side}px` });
    const pen = canvas.getContext("2d"), ink = getComputedStyle(root).color;
    pen.scale(ratio, ratio);
    const own = chain < 0 ? null : new Set(shown.chains[chain] ?? []);
    pen.font = `${Math.min(11, size - 1)}px system-ui, sans-serif`;
    tokens.forEach((token, i) => {
      const at = MARGIN + i * size;
      pen.globalAlpha = !own || own.has(i) ? 1 : .35;
      pen.fillStyle = ink;
      pen.textAlign = "right";
      pen.textBaseline = "middle";
      pen.fillText(token.slice(0, 6), MARGIN - 3, at + size / 2);
      pen.save();
      pen.translate(at + size / 2, MARGIN - 3);
      pen.rotate(-Math.PI / 2);
      pen.textAlign = "left";
      pen.fillText(token.slice(0, 6), 0, 0);
      pen.restore();
    });
    pen.globalAlpha = 1;
    for (const i of own ?? []) {
      pen.fillStyle = "rgba(224,134,43,.13)";
      pen.fillRect(MARGIN, MARGIN + i * size, n * size, size);
      pen.fillRect(MARGIN + i * size, MARGIN, size, n * size);
    }
    shown.pattern.forEach((row, dest) => row.forEach((weight, src) => {
      if (!weight) return;
      const stands = !own || own.has(dest);
      pen.fillStyle = `rgba(${HEAT},${weight / 1000 * (stands ? 1 : .35)})`;
      pen.fillRect(MARGIN + src * size, MARGIN + dest * size, size, size);
    }));
    pen.strokeStyle = ink;
    pen.globalAlpha = .3;
    pen.strokeRect(MARGIN - .5, MARGIN - .5, n * size + 1, n * size + 1);
    pen.globalAlpha = 1;
    pen.strokeStyle = PATH;
    pen.lineWidth = 2;
    shown.chains.forEach((positions, number) => {
      if (chain >= 0 && number !== chain) return;
      positions.forEach((at, dest) => positions.forEach((from, src) => {
        if (isIn(dest, src))
          pen.strokeRect(MARGIN + from * size + 1, MARGIN + at * size + 1, size - 2, size - 2);
      }));
    });
  }

  function under(event) {
    const box = canvas.getBoundingClientRect(), { shown, label } = current();
    const scale = (MARGIN + shown.tokens.length * size + 2) / box.width;
    const cell = (offset, edge) => Math.floor(((offset - edge) * scale - MARGIN) / size);
    const src = cell(event.clientX, box.left), dest = cell(event.clientY, box.top);
    const n = shown.tokens.length;
    if (src < 0 || dest < 0 || src >= n || dest >= n) return null;
    return { src, dest, to: roleOf(dest, shown), from: roleOf(src, shown), shown, label };
  }

  canvas.onmousemove = event => {
    const at = under(event);
    if (!at) { hover.textContent = ""; return; }
    const { tokens, pattern } = at.shown;
    const weight = (pattern[at.dest][at.src] / 1000).toFixed(3);
    const same = at.to && at.from && at.to.chain === at.from.chain;
    hover.textContent = `${tokens[at.dest]} attends to ${tokens[at.src]}: ${weight}`
      + (same ? ` (${roles[at.to.role]}<-${roles[at.from.role]})` : "");
  };
  canvas.onclick = event => {
    const at = under(event);
    if (!at || !at.to) return;
    if (chain !== at.to.chain) { chain = at.to.chain; drawShown(); return; }
    if (at.from && at.from.chain === at.to.chain)
      ask("toggle", { path: pathName(at.label, at.to.role, at.from.role) });
  };

  function drawShown() {
    const { shown } = current();
    title.textContent = `${name(shown.layer, shown.head)}, `
      + `${shown.with_circuit ? "with the circuit" : "intact model"}: rows attend to columns`;
    example.value = shown.example;
    living.checked = shown.with_circuit;
    const pick = (number, text) => element("button", {
      textContent: text, className: number === chain ? "on" : "",
      onclick: () => { chain = number; drawShown(); },
    });
    chains.replaceChildren("chain of ", ...shown.chains.map((positions, number) =>
      pick(number, shown.tokens[positions[0]])), pick(-1, "all"));
    const choiceFocus = root.contains(document.activeElement)
      ? document.activeElement.dataset.choice : undefined;
    choices.replaceChildren(...(shown.choices ?? []).flatMap(choice => {
      const button = element("button", {
        textContent: choice.name, className: choice.chosen ? "on" : "", title: choice.line,
        onclick: () => ask("suppose", { line: choice.line }),
      });
      button.dataset.choice = choice.name;
      return [button, element("span", { textContent: number(choice.loss) }),
        element("span", { className: "soft", textContent: choice.paths })];
    }));
    if (choiceFocus) root.querySelector(`[data-choice="${choiceFocus}"]`)?.focus();
    keepFocus(() => { drawHeads(); drawRoles(); }, "head", "path");
    drawExample();
  }

  // The example is painted in the page's colours, which a theme changes.
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const themes = new MutationObserver(() => drawExample());
  themes.observe(document.body, { attributes: true });
  dark.addEventListener("change", drawExample);

  model.on("change:state", drawState);
  model.on("change:shown", drawShown);
  drawState();
  drawShown();
  return () => {
    themes.disconnect();
    dark.removeEventListener("change", drawExample);
  };
}

export default { render };
