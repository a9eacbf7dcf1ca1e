// Draws one figure after the other, so that the page can be read while it fills.
const plots = Array.from(document.querySelectorAll("figure > .plot"));
const draw = (plot) => {
  if (plot.dataset.drawn) return;
  plot.dataset.drawn = "yes";
  const figure = JSON.parse(plot.nextElementSibling.textContent);
  Plotly.newPlot(plot, figure.data, figure.layout, config);
};
const next = () => {
  const plot = plots.find((one) => !one.dataset.drawn);
  if (!plot) return void (document.body.dataset.drawn = "yes");
  draw(plot);
  setTimeout(next, 0);
};
window.addEventListener("beforeprint", () => {
  document.querySelectorAll("details").forEach((one) => (one.open = true));
  plots.forEach((plot) => {
    draw(plot);
    Plotly.Plots.resize(plot);
  });
});
next();
