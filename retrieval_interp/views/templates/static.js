// A model with nothing behind it: everything that can be shown is in the page. `data` and
// `attention` are defined above; circuitsvis draws the same attention further down.
class StaticModel {
  constructor() {
    this.listeners = new Set();
    const { rows } = data.state;
    const first = rows.find(row => row.ablated_loss !== undefined) ?? rows[0];
    const [layer, head] = first ? headOf(first.name) : [0, 0];
    this.choose({ layer, head, example: 0, path: first?.name ?? null });
  }

  choose({ layer, head, example, path }) {
    this.shown = {
      layer, head, example, with_circuit: false, by_role: data.by_role,
      tokens: attention.tokens[example], chains: data.chains[example],
      pattern: attention.attention[example][layer * data.model_info.heads + head],
      path: path && this.pathOf(path),
    };
  }

  pathOf(name) {
    const { labels, roles } = data.model_info, [layer, head] = headOf(name);
    const [dest, src] = name.split(" ")[1].split("<-").map(role => roles.indexOf(role));
    return data.state.rows.find(row => row.name === name) ?? {
      name, meaning: `${labels[dest]} <- ${labels[src]}`, note: "not in the circuit",
      attention: data.by_role[layer][head][dest][src] / 1000,
    };
  }

  get(name) { return name === "shown" ? this.shown : data[name]; }
  on(event, act) { this.listeners.add(act); }
  off(event, act) { this.listeners.delete(act); }

  send(message) {
    const known = message.example >= 0 && message.example < data.model_info.examples;
    this.choose({ ...message, example: known ? message.example : this.shown.example });
    for (const tell of this.listeners) tell();
  }
}

const place = document.getElementById("explorer");
place.replaceChildren();
const page = new Page(new StaticModel(), place, document.body);
page.listen();

// Rows and cells of the page's own tables are as good as the explorer's.
for (const one of document.querySelectorAll(".ri tr[data-path], .ri .maps td[data-path]")) {
  if (place.contains(one)) continue;
  one.tabIndex = 0;
  one.onclick = () => page.select(one.dataset.path);
  one.onkeydown = onEnter(one.onclick);
}
