// Mean attention by role: a small map of every head, and a table of the selected head's paths.

class Heads {
  constructor(page) {
    this.page = page;
    const columns = page.info.heads > 1 ? page.info.heads : "auto-fill";
    this.maps = element("div", { className: "heads" });
    this.maps.style.gridTemplateColumns = `repeat(${columns}, 70px)`;
    this.title = element("h4");
    this.table = element("table", { className: "roles" });
  }

  draw() {
    this.drawMaps();
    this.drawTable();
  }

  drawMaps() {
    const { info } = this.page, layers = [...Array(info.layers).keys()], cells = [];
    // With several heads per layer, the first layer is at the bottom.
    for (const layer of info.heads > 1 ? layers.reverse() : layers)
      for (let head = 0; head < info.heads; head++) cells.push([layer, head]);
    this.maps.replaceChildren(...cells.map(([layer, head]) => this.headButton(layer, head)));
    const picked = this.maps.querySelector(".picked");
    if (picked)
      this.maps.scrollTop = Math.max(0, picked.offsetTop - this.maps.offsetTop - 160);
  }

  headButton(layer, head) {
    const { page } = this, { shown } = page;
    const label = headName(layer, head), { kind, paths } = page.state.heads[label];
    const picked = layer === shown.layer && head === shown.head;
    const button = element("button", {
      className: `head${picked ? " picked" : ""}${paths.length ? " paths" : ""}`,
      title: `${label}: ${kind} ${paths.map(path => page.pathName("", ...path)).join(" ")}`,
      onclick: () => page.show({ layer, head, path: null }),
    }, this.headMap(shown.by_role[layer][head], paths),
      element("div", { textContent: label }),
      element("div", { className: "kind", textContent: kind }));
    button.dataset.head = label;
    return button;
  }

  headMap(weights, paths) {
    const { order } = this.page.info;
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

  drawTable() {
    const { order, roles, labels, symbols } = this.page.info;
    this.title.textContent = `Paths of ${this.page.current().label}: a role (row) attends to another`;
    const header = element("tr", {}, element("th"),
      ...order.map(src => element("th", { title: labels[src] },
        ...(symbols[src] === roles[src] ? [] : [symbols[src], element("br")]), roles[src])));
    this.table.replaceChildren(header, ...order.map(dest => element("tr", {},
      element("th", { textContent: roles[dest], title: labels[dest] }, element("span", {
        className: "long", textContent: labels[dest] === roles[dest] ? "" : ` ${labels[dest]}` })),
      ...order.map(src => element("td", {}, this.pathButton(dest, src))))));
  }

  pathButton(dest, src) {
    const { page } = this, { order, labels } = page.info, { layer, head, by_role } = page.shown;
    const { label, isIn } = page.current(), path = page.pathName(label, dest, src);
    const weight = by_role[layer][head][dest][src] / 1000, inside = isIn(dest, src);
    const later = order.indexOf(src) > order.indexOf(dest);
    const button = element("button", {
      className: `${weight > .55 ? "hot" : ""}${inside ? " in" : ""}`,
      textContent: weight >= .05 ? weight.toFixed(2).replace(/^0/, "") : "",
      title: `${labels[dest]} from ${labels[src]}: ${weight.toFixed(3)}`,
      disabled: later && weight === 0 && !inside,
      onclick: () => page.click(path),
    });
    button.style.setProperty("--w", weight);
    button.dataset.path = path;
    button.ariaPressed = String(inside);
    return button;
  }
}
