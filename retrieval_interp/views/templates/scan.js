// A click on a cell of the heat map, or on a row of the table, shows that head's patterns; `name`
// and `data` are defined above.
const scan = document.getElementById(name);
const buttons = [...scan.querySelectorAll(".grid button")];
const rows = [...scan.querySelectorAll(".sortable tbody tr")];
const choose = head => {
  for (const one of buttons) one.setAttribute("aria-pressed", one.dataset.head === head);
  for (const row of rows) row.classList.toggle("chosen", row.cells[0].textContent === head);
  scan.querySelector(".patterns").hidden = false;
  scan.querySelector(".chosen").textContent = head;
  data.heads[head].forEach((pattern, at) =>
    CircuitsVis.render(`${name}-${at}`, CircuitsVis.AttentionPattern, {
      tokens: data.tokens, attention: pattern.map(row => row.map(weight => weight / 1000)),
      minValue: 0, maxValue: 1, maskUpperTri: data.causal,
    }));
};
for (const one of buttons) one.onclick = () => choose(one.dataset.head);
for (const row of rows) row.onclick = () => choose(row.cells[0].textContent);
choose(rows[0].cells[0].textContent);
