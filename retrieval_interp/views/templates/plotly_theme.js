// Plotly draws with fixed colours; this makes text and grid follow the page's theme.
{
  const clear = "rgba(0,0,0,0)", line = "rgba(128,136,144,0.25)";
  const paint = () => {
    const { color } = getComputedStyle(document.body);
    for (const figure of document.querySelectorAll(".plotly-graph-div")) {
      const change = { paper_bgcolor: clear, plot_bgcolor: clear, "font.color": color };
      for (const name of Object.keys(figure._fullLayout)) {
        if (/^[xy]axis[0-9]*$/.test(name)) {
          change[name + ".gridcolor"] = line;
          change[name + ".zerolinecolor"] = line;
        }
      }
      Plotly.relayout(figure, change);
    }
  };
  paint();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
}
