// Draws one example at a time with circuitsvis; `name` and `data` are defined above.
const draw = example => CircuitsVis.render(name, CircuitsVis.AttentionHeads, {
  ...data.props, minValue: 0, maxValue: 1,
  tokens: data.tokens[example],
  attention: data.attention[example].map(head => head.map(row => row.map(value => value / 1000))),
});
const select = document.getElementById(name).parentElement.querySelector("select");
select.onchange = () => draw(Number(select.value));
draw(0);
