// A model whose other end is a server: values come as events, messages go as requests. Both
// addresses are relative to the page's own, which holds the token.
class ServedModel {
  constructor() {
    this.values = {};
    this.listeners = {};
  }

  get(name) { return this.values[name]; }

  on(event, act) { (this.listeners[event] ??= new Set()).add(act); }

  off(event, act) { this.listeners[event]?.delete(act); }

  send(message) {
    const headers = { "Content-Type": "application/json" };
    fetch("ask", { method: "POST", headers, body: JSON.stringify(message) }).catch(() => this.lost());
  }

  // Follows the server; `act` runs once every value is there.
  start(act) {
    const events = new EventSource("events"), names = ["model_info", "state", "shown"];
    for (const name of names)
      events.addEventListener(name, event => {
        document.body.classList.remove("lost");
        const first = names.some(other => !(other in this.values));
        this.values[name] = JSON.parse(event.data);
        if (!first) for (const tell of this.listeners[`change:${name}`] ?? []) tell();
        else if (names.every(other => other in this.values)) act();
      });
    events.onerror = () => this.lost();
  }

  lost() { document.body.classList.add("lost"); }
}

const served = new ServedModel();
served.start(() => render({ model: served, el: document.getElementById("explorer") }));
