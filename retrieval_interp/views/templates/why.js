// A click on an arrow or on a row shows that head's patterns; `name` and `data` are defined above.
const why = document.getElementById(name);
const rows = [...why.querySelectorAll("tr[data-path]")];
const arrows = [...why.querySelectorAll("g.arrow")];
const choose = path => {
  const head = path.split(" ")[0];
  for (const row of rows) row.classList.toggle("chosen", row.dataset.path === path);
  for (const arrow of arrows) arrow.style.opacity = arrow.dataset.path === path ? 1 : 0.45;
  why.querySelector(".patterns").hidden = false;
  why.querySelector(".chosen").textContent = head;
  data.heads[head].forEach((pattern, at) =>
    CircuitsVis.render(`${name}-${at}`, CircuitsVis.AttentionPattern, {
      tokens: data.tokens, attention: pattern.map(row => row.map(weight => weight / 1000)),
      minValue: 0, maxValue: 1, maskUpperTri: data.causal,
    }));
};
for (const one of [...rows, ...arrows]) one.onclick = () => choose(one.dataset.path);
if (rows.length) choose(rows[0].dataset.path);
