// The top of the explorer: the loss of the circuit so far, and what can be done to the whole of it.

class Bar {
  constructor(page) {
    this.page = page;
    this.loss = element("span", { className: "loss", title: page.info.loss_meaning });
    this.facts = element("span", { className: "soft" });
    this.said = element("div", { className: "said soft" });
    this.said.setAttribute("role", "status");
    this.parts = [this.makeTop(), this.said];
  }

  makeTop() {
    const { page } = this;
    const button = (textContent, onclick) => element("button", { textContent, onclick });
    this.undo = button("Undo", () => page.ask("undo"));
    this.clear = button("Clear", () => page.ask("clear"));
    this.discover = button("Discover", () => {
      this.say("searching …", false, true);
      page.ask("discover", this.searchOptions());
    });
    this.cancel = button("Cancel", () => { this.cancel.disabled = true; page.ask("cancel"); });
    this.cancel.hidden = true;
    this.score = button("Score", () => {
      const controls = this.options.controls.value;
      this.say("scoring …");
      page.ask("score", controls === "" ? {} : { controls: Number(controls) });
    });
    const saveNow = () => page.ask("save", { path: file.value });
    const file = element("input", {
      type: "text", value: "circuit.json", ariaLabel: "file name", onkeydown: onEnter(saveNow),
    });
    this.save = button("Save", saveNow);
    return element("div", { className: "top" },
      element("b", { textContent: page.info.name }), this.loss, this.facts,
      element("span", { className: "gap" }), this.undo, this.clear, this.discover,
      this.cancel, this.score, this.makeOptions(),
      element("span", { className: "together" }, file, this.save),
      element("div", { className: "task soft", textContent: page.info.description }));
  }

  // What bounds a search, and a score; what is left empty is the default.
  makeOptions() {
    const field = (name, label, properties) => {
      this.options[name] = element("input", { ariaLabel: label, ...properties });
      return element("label", {}, `${label} `, this.options[name]);
    };
    const number = (name, label) => field(name, label, { type: "number", min: 1 });
    this.options = {};
    return element("details", { className: "options" },
      element("summary", { textContent: "options" }),
      number("time", "seconds"), number("examples", "examples"), number("restarts", "starts"),
      field("heads", "heads", { type: "text", placeholder: "all" }),
      field("one_hot", "one-hot only", { type: "checkbox" }),
      number("controls", "random circuits"));
  }

  searchOptions() {
    const { time, examples, restarts, heads, one_hot } = this.options, found = {};
    for (const [name, { value }] of Object.entries({ time, examples, restarts }))
      if (value !== "") found[name] = Number(value);
    const chosen = heads.value.split(/[\s,]+/).filter(head => head);
    if (chosen.length) found.heads = chosen;
    return { ...found, one_hot: one_hot.checked };
  }

  say(text, failed = false, searching = false) {
    if (!searching) this.cancel.disabled = false;
    this.cancel.hidden = !searching;
    this.discover.hidden = searching;
    this.said.textContent = text;
    this.said.classList.toggle("failed", failed);
    const busy = text.endsWith("…");
    for (const button of [this.undo, this.clear, this.discover, this.score, this.save])
      button.disabled = busy;
  }

  draw() {
    const { info, state } = this.page;
    const good = state.loss !== null && state.loss < info.tolerance;
    this.loss.textContent = `${info.loss_name} ${lossText(state.loss)}`;
    this.loss.className = `loss ${good ? "good" : "bad"}`;
    this.facts.textContent = `${state.replaced} of ${counted(info.layers * info.heads, "head")} `
      + `replaced · intact ${lossText(state.intact)} · ${good ? "below" : "not below"} the `
      + `tolerance of ${Number(info.tolerance.toPrecision(4))}`;
    const searching = Boolean(state.busy) && state.busy !== "scoring";
    this.say(state.busy ? `${state.busy} …` : state.said, state.failed, searching);
    if (!state.undoable) this.undo.disabled = true;
    if (!state.replaced) this.clear.disabled = true;
  }
}
