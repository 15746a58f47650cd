// A model whose other end is a server: the page comes as events, messages go as requests. Both
// addresses are relative to the page's own, which holds the token.
const lost = () => document.body.classList.add("lost"), headers = { "Content-Type": "application/json" };
const events = new EventSource("events"), served = {
  get: () => served.page,
  on: (_, draw) => { served.draw = draw; },
  send: message => fetch("ask", { method: "POST", headers, body: JSON.stringify(message) }).catch(lost),
  draw: () => new Page(served, document.getElementById("explorer")).root.focus(),
};
events.onerror = lost;
events.addEventListener("page", event => {
  document.body.classList.remove("lost");
  served.page = JSON.parse(event.data);
  served.draw();
});
