// Draws one example at a time with circuitsvis; `name` and `data` are defined above.
(globalThis.attentionShown ??= {})[name] = data;
const draw = example => CircuitsVis.render(name, CircuitsVis.AttentionHeads, {
  ...data.props,
  tokens: data.tokens[example],
  attention: data.attention[example].map(head => head.map(row => row.map(value => value / 1000))),
});
const select = document.getElementById(name).parentElement.querySelector("select");
select.onchange = () => draw(Number(select.value));
draw(0);
