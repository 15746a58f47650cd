// A model with nothing behind it: everything that can be shown is in the page. `frozen` and
// `attention` are defined above; circuitsvis draws the same attention further down.
class FrozenModel {
  constructor() {
    this.listeners = new Set();
    const known = frozen.state.rows.find(row => row.ablated !== undefined) ?? frozen.state.rows[0];
    const [layer, head] = known ? known.name.match(/[0-9]+/g).slice(0, 2).map(Number) : [0, 0];
    this.choose({ layer, head, example: 0, path: known?.name ?? null });
  }

  choose({ layer, head, example, path }) {
    const { heads } = frozen.model_info, number = layer * heads + head;
    this.shown = {
      layer, head, example, with_circuit: false, choices: [], by_role: frozen.by_role,
      tokens: attention.tokens[example], chains: frozen.chains[example],
      pattern: attention.attention[example][number], path: path && this.pathOf(path),
    };
  }

  pathOf(name) {
    const { labels, roles } = frozen.model_info, [head, arrow] = name.split(" ");
    const [layer, number] = head.match(/[0-9]+/g).map(Number);
    const [dest, src] = arrow.split("<-").map(role => roles.indexOf(role));
    return frozen.state.rows.find(row => row.name === name) ?? {
      name, ends: [dest, src], label: `${labels[dest]} <- ${labels[src]}`,
      attention: frozen.by_role[layer][number][dest][src] / 1000, note: "not in the circuit",
    };
  }

  get(name) { return name === "shown" ? this.shown : frozen[name]; }

  on(event, act) { if (event === "change:shown") this.listeners.add(act); }

  off(event, act) { this.listeners.delete(act); }

  send(message) {
    const { examples } = frozen.model_info;
    if (!(message.example >= 0 && message.example < examples)) message.example = this.shown.example;
    this.choose(message);
    for (const tell of this.listeners) tell();
  }
}

const place = document.getElementById("explorer");
place.replaceChildren();
const page = show(new FrozenModel(), place, document.body);
page.listen();

// Rows and cells of the page's own tables are as good as the explorer's.
for (const one of document.querySelectorAll(".ri tr[data-path], .ri .maps td[data-path]")) {
  if (place.contains(one)) continue;
  one.tabIndex = 0;
  const choose = () => { page.select(one.dataset.path); };
  one.onclick = choose;
  one.onkeydown = event => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    choose();
  };
}
