// One head's attention on one example, on a canvas, with the positions' names at its edges.

const MARGIN = 34, HEAT = "47,111,190", PATH = "#e0862b", CHOSEN = "#c2305f";

class Example {
  // `page` knows what is shown, the highlighted chain and the selected path.
  constructor(page) {
    this.page = page;
    this.canvas = element("canvas", {
      className: "example",
      onmousemove: event => this.describe(event), onclick: event => this.click(event),
    });
    this.hover = element("div", { className: "hover soft" });
    this.parts = [this.canvas, this.hover];
  }

  draw() {
    const { shown, chain, root } = this.page;
    const n = shown.tokens.length, ratio = window.devicePixelRatio || 1;
    this.size = Math.max(5, Math.min(16, Math.floor(440 / n))); // of a position, in pixels
    this.side = MARGIN + n * this.size + 2;
    Object.assign(this.canvas, { width: this.side * ratio, height: this.side * ratio });
    Object.assign(this.canvas.style, { width: `${this.side}px`, height: "auto" });
    const pen = this.canvas.getContext("2d");
    pen.scale(ratio, ratio);
    this.ink = getComputedStyle(root).color;
    this.bright = at => chain < 0 || shown.chains[chain]?.includes(at) ? 1 : .35;
    this.paintTokens(pen);
    this.paintPattern(pen);
    this.paintPaths(pen);
  }

  paintTokens(pen) {
    const { size } = this;
    Object.assign(pen, { fillStyle: this.ink, textBaseline: "middle",
      font: `${Math.min(11, size - 1)}px system-ui, sans-serif` });
    this.page.shown.tokens.forEach((token, at) => {
      const middle = MARGIN + (at + .5) * size, text = tokenOf(token).slice(0, 6);
      pen.save();
      pen.globalAlpha = this.bright(at);
      pen.textAlign = "right";
      pen.fillText(text, MARGIN - 3, middle, MARGIN - 4);
      pen.translate(middle, MARGIN - 3);
      pen.rotate(-Math.PI / 2);
      pen.textAlign = "left";
      pen.fillText(text, 0, 0, MARGIN - 4);
      pen.restore();
    });
  }

  paintPattern(pen) {
    const { size, page: { chain, shown } } = this, side = shown.pattern.length * size;
    pen.fillStyle = "rgba(224,134,43,.13)";
    for (const at of new Set(shown.chains[chain])) {
      pen.fillRect(MARGIN, MARGIN + at * size, side, size);
      pen.fillRect(MARGIN + at * size, MARGIN, size, side);
    }
    shown.pattern.forEach((row, dest) => row.forEach((weight, src) => {
      if (!weight) return;
      pen.fillStyle = `rgba(${HEAT},${weight / 1000 * this.bright(dest)})`;
      pen.fillRect(MARGIN + src * size, MARGIN + dest * size, size, size);
    }));
    pen.save();
    Object.assign(pen, { strokeStyle: this.ink, globalAlpha: .3 });
    pen.strokeRect(MARGIN - .5, MARGIN - .5, side + 1, side + 1);
    pen.restore();
  }

  // The circuit's paths on the highlighted chain, and the selected path on every chain.
  paintPaths(pen) {
    const { page, size } = this, { chains, path } = page.shown;
    const frame = ([dest, src], color, chain) => chains.forEach((positions, number) => {
      const at = positions[dest], from = positions[src];
      if (chain >= 0 && number !== chain || at < 0 || from < 0) return;
      Object.assign(pen, { strokeStyle: color, lineWidth: 2 });
      pen.strokeRect(MARGIN + from * size + 1, MARGIN + at * size + 1, size - 2, size - 2);
    });
    for (const ends of page.current().paths)
      if (page.pathName(...ends) !== path?.name) frame(ends, PATH, page.chain);
    if (path) frame(page.ends(path.name), CHOSEN, -1);
  }

  // The two positions under the pointer, with the roles that one chain gives them, if any.
  under(event) {
    const box = this.canvas.getBoundingClientRect(), { tokens, chains } = this.page.shown;
    const cell = offset => Math.floor((offset * this.side / box.width - MARGIN) / this.size);
    const src = cell(event.clientX - box.left), dest = cell(event.clientY - box.top);
    if (src < 0 || dest < 0 || src >= tokens.length || dest >= tokens.length) return null;
    const numbers = [this.page.chain, ...chains.keys()].filter(number => number >= 0);
    const together = numbers.find(n => chains[n].includes(dest) && chains[n].includes(src));
    const chain = together ?? numbers.find(n => chains[n].includes(dest));
    const roles = together === undefined ? null : [dest, src].map(at => chains[chain].indexOf(at));
    return { src, dest, chain, roles };
  }

  describe(event) {
    const at = this.under(event), { tokens, pattern } = this.page.shown, { roles } = this.page.info;
    this.hover.textContent = !at ? "" : `${tokens[at.dest]} attends to ${tokens[at.src]}: `
      + (pattern[at.dest][at.src] / 1000).toFixed(3)
      + (at.roles ? ` (${at.roles.map(role => roles[role]).join("<-")})` : "");
  }

  // A click highlights the chain, and selects the path where both positions have a role in it.
  click(event) {
    const at = this.under(event), { page } = this;
    if (at?.chain === undefined) return;
    page.chain = at.chain;
    if (at.roles) page.click(page.pathName(...at.roles));
    page.drawLook();
  }
}
