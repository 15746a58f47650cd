// A click on an arrow or on a row shows that head's patterns; `name` and `data` are defined above.
const why = document.getElementById(name);
const parts = [...why.querySelectorAll("tr[data-path], g.arrow")];
const choose = path => {
  const head = path.split(" ")[0];
  for (const part of parts) part.classList.toggle("selected", part.dataset.path === path);
  why.querySelector(".patterns").hidden = false;
  why.querySelector(".patterns b").textContent = head;
  data.heads[head].forEach((pattern, at) =>
    CircuitsVis.render(`${name}-${at}`, CircuitsVis.AttentionPattern, {
      tokens: data.tokens, attention: pattern.map(row => row.map(weight => weight / 1000)),
      minValue: 0, maxValue: 1, maskUpperTri: data.causal,
    }));
};
for (const part of parts) part.onclick = () => choose(part.dataset.path);
if (parts.length) choose(parts[0].dataset.path);
