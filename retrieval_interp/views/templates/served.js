// A model whose other end is a server: values come as events, messages go as requests. Both
// addresses are relative to the page's own, which holds the token.
class ServedModel {
  values = {};
  listeners = {};

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
    const complete = () => names.every(name => name in this.values);
    for (const name of names)
      events.addEventListener(name, event => {
        document.body.classList.remove("lost");
        const begun = complete();
        this.values[name] = JSON.parse(event.data);
        if (begun) for (const tell of this.listeners[`change:${name}`] ?? []) tell();
        else if (complete()) act();
      });
    events.onerror = () => this.lost();
  }

  lost() { document.body.classList.add("lost"); }
}

const served = new ServedModel();
served.start(() => new Page(served, document.getElementById("explorer")).listen());
