// Draws the figures of #figures, and lets tables be sorted by a click on a heading.
const figures = JSON.parse(document.getElementById("figures").textContent);
function draw(place, figure) {
  const flat = figure.data.every((trace) => trace.type !== "parcoords");
  const buttons = [flat ? ["toImage", "zoom2d", "pan2d", "resetScale2d"] : ["toImage"]];
  const config = { responsive: true, displaylogo: false, modeBarButtons: buttons };
  Plotly.react(place, figure.data, figure.layout, config);
}
for (const place of document.querySelectorAll("[data-figure]")) {
  draw(place, figures[place.dataset.figure]);
}
for (const select of document.querySelectorAll("select[data-draws]")) {
  const place = document.getElementById(select.dataset.draws);
  select.addEventListener("change", () => draw(place, figures[select.value]));
}
for (const table of document.querySelectorAll("table.sortable")) {
  table.querySelectorAll("th").forEach((head, column) => {
    head.addEventListener("click", () => {
      const down = head.classList.contains("up");
      table.querySelectorAll("th").forEach((h) => h.classList.remove("up", "down"));
      head.classList.add(down ? "down" : "up");
      const body = table.tBodies[0];
      const value = (row) => row.cells[column].dataset.v ?? row.cells[column].textContent;
      const rows = [...body.rows].sort((a, b) => {
        const x = value(a), y = value(b);
        if (x === "" || y === "") return (x === "") - (y === "");
        const order = isNaN(x) || isNaN(y) ? x.localeCompare(y) : x - y;
        return down ? -order : order;
      });
      body.append(...rows);
    });
  });
}
document.documentElement.dataset.drawn = document.querySelectorAll(".js-plotly-plot").length;
