// One head's attention on one example, on a canvas, with the positions' names at its edges.

const MARGIN = 34, HEAT = "47,111,190", PATH = "#e0862b", CHOSEN = "#c2305f";

// The pairs of positions that a path joins, in one chain or in all (-1).
function joined(chains, [dest, src], chain) {
  const shown = chain < 0 ? chains : [chains[chain]];
  return shown.map(at => [at[dest], at[src]]).filter(([at, from]) => at >= 0 && from >= 0);
}

class Example {
  // `page` knows the state, the highlighted chain and the selected path.
  constructor(page) {
    this.page = page;
    this.size = 12; // of a position, in pixels
    this.canvas = element("canvas", {
      className: "example",
      onmousemove: event => this.describe(event), onclick: event => this.click(event),
    });
    this.hover = element("div", { className: "hover soft" });
    this.parts = [this.canvas, this.hover];
  }

  draw() {
    const { shown, chain } = this.page;
    const n = shown.tokens.length, ratio = window.devicePixelRatio || 1;
    this.size = Math.max(5, Math.min(16, Math.floor(440 / n)));
    const side = MARGIN + n * this.size + 2;
    Object.assign(this.canvas, { width: side * ratio, height: side * ratio });
    Object.assign(this.canvas.style, { width: `${side}px`, height: "auto" });
    const pen = this.canvas.getContext("2d"), ink = getComputedStyle(this.page.root).color;
    pen.scale(ratio, ratio);
    const own = chain < 0 ? null : new Set(shown.chains[chain] ?? []);
    this.paintTokens(pen, ink, own);
    this.paintPattern(pen, ink, own);
    this.paintPaths(pen);
  }

  paintTokens(pen, ink, own) {
    const { size } = this;
    pen.font = `${Math.min(11, size - 1)}px system-ui, sans-serif`;
    pen.fillStyle = ink;
    pen.textBaseline = "middle";
    this.page.shown.tokens.forEach((token, i) => {
      const middle = MARGIN + (i + .5) * size, text = tokenOf(token).slice(0, 6);
      pen.globalAlpha = !own || own.has(i) ? 1 : .35;
      pen.textAlign = "right";
      pen.fillText(text, MARGIN - 3, middle, MARGIN - 4);
      pen.save();
      pen.translate(middle, MARGIN - 3);
      pen.rotate(-Math.PI / 2);
      pen.textAlign = "left";
      pen.fillText(text, 0, 0, MARGIN - 4);
      pen.restore();
    });
    pen.globalAlpha = 1;
  }

  paintPattern(pen, ink, own) {
    const { size } = this, { pattern } = this.page.shown, side = pattern.length * size;
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

  // The circuit's paths on the highlighted chain, and the selected path on every chain.
  paintPaths(pen) {
    const { page, size } = this, { chains, layer, head, path } = page.shown;
    const { label, paths } = page.current();
    const framed = paths.map(one => [one, page.pathName(label, ...one)])
      .filter(([, name]) => name !== page.selected)
      .map(([one]) => [one, PATH, page.chain]);
    if (path && path.name === page.selected) framed.push([path.ends, CHOSEN, -1]);
    pen.lineWidth = 2;
    for (const [ends, color, chain] of framed) {
      pen.strokeStyle = color;
      for (const [at, from] of joined(chains, ends, chain))
        pen.strokeRect(MARGIN + from * size + 1, MARGIN + at * size + 1, size - 2, size - 2);
    }
  }

  // The two positions under the pointer, with the roles that one chain gives them, if any.
  under(event) {
    const box = this.canvas.getBoundingClientRect(), { tokens, chains } = this.page.shown;
    const scale = (MARGIN + tokens.length * this.size + 2) / box.width;
    const cell = (offset, edge) => Math.floor(((offset - edge) * scale - MARGIN) / this.size);
    const src = cell(event.clientX, box.left), dest = cell(event.clientY, box.top);
    if (src < 0 || dest < 0 || src >= tokens.length || dest >= tokens.length) return null;
    const first = this.page.chain;
    const numbers = [...chains.keys()].sort((a, b) => (b === first) - (a === first));
    const together = numbers.find(n => chains[n].includes(dest) && chains[n].includes(src));
    const chain = together ?? numbers.find(n => chains[n].includes(dest));
    const roles = together === undefined ? null : [dest, src].map(at => chains[chain].indexOf(at));
    return { src, dest, chain, roles };
  }

  describe(event) {
    const at = this.under(event);
    if (!at) { this.hover.textContent = ""; return; }
    const { tokens, pattern } = this.page.shown, { roles } = this.page.info;
    const weight = (pattern[at.dest][at.src] / 1000).toFixed(3);
    this.hover.textContent = `${tokens[at.dest]} attends to ${tokens[at.src]}: ${weight}`
      + (at.roles ? ` (${at.roles.map(role => roles[role]).join("<-")})` : "");
  }

  // A click highlights the chain, and selects the path where both positions have a role in it.
  click(event) {
    const at = this.under(event);
    if (!at || at.chain === undefined) return;
    const { page } = this;
    const moved = page.chain !== at.chain;
    page.chain = at.chain;
    if (at.roles) page.click(page.pathName(page.current().label, ...at.roles));
    if (moved) page.drawShown();
  }
}
