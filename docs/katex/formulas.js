// Draws the formulas that pymdownx.arithmatex has marked, with the KaTeX beside this file.
document.addEventListener("DOMContentLoaded", () => {
  for (const formula of document.querySelectorAll(".arithmatex")) {
    const text = formula.textContent.trim();
    katex.render(text.slice(2, -2), formula, {
      displayMode: text.startsWith("\\["),
      throwOnError: false,
    });
  }
});
