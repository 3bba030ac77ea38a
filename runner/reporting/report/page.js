// Draws the figures of #figures; tables can be sorted, filtered, and shown in part.
// A figure is drawn when it comes near to what is seen, or is printed: of a thousand runs the table is
// there at once. Printed pages are light.
let figures = {};
const night = matchMedia("(prefers-color-scheme: dark)");
function shade(layout) {
  const axes = Object.keys(layout).filter((key) => /^[xy]axis/.test(key));
  const lines = { gridcolor: "#334155", linecolor: "#475569" };
  const shaded = axes.map((key) => [key, { ...layout[key], ...lines }]);
  const font = { ...layout.font, color: "#e2e8f0" };
  return { ...layout, ...Object.fromEntries(shaded), font, plot_bgcolor: "rgba(0,0,0,0)" };
}
function draw(place, dark = night.matches) {
  const figure = figures[place.dataset.figure];
  const flat = figure.data.every((trace) => trace.type !== "parcoords");
  const buttons = [flat ? ["toImage", "zoom2d", "pan2d", "resetScale2d"] : ["toImage"]];
  const config = { responsive: true, displaylogo: false, modeBarButtons: buttons };
  Plotly.react(place, figure.data, dark ? shade(figure.layout) : figure.layout, config);
  near.unobserve(place);
  document.documentElement.dataset.drawn = document.querySelectorAll(".js-plotly-plot").length;
}
const near = new IntersectionObserver(
  (entries) => entries.filter((one) => one.isIntersecting).forEach((one) => draw(one.target)),
  { rootMargin: "300px" },
);
const drawAll = (selector, dark) =>
  document.querySelectorAll(selector).forEach((place) => draw(place, dark));
addEventListener("beforeprint", () => drawAll("[data-figure]", false));
addEventListener("afterprint", () => drawAll(".js-plotly-plot"));
night.addEventListener("change", () => drawAll(".js-plotly-plot"));
const valueOf = (cell) => cell.dataset.v ?? cell.textContent;
function sortRows(table, column, down) {
  table.querySelectorAll("th").forEach((head, number) => {
    head.classList.toggle("up", number === column && !down);
    head.classList.toggle("down", number === column && down);
    const order = down ? "descending" : "ascending";
    head.setAttribute("aria-sort", number === column ? order : "none");
  });
  const rows = [...table.tBodies[0].rows].sort((a, b) => {
    const x = valueOf(a.cells[column]), y = valueOf(b.cells[column]);
    if (x === "" || y === "") return (x === "") - (y === "");
    const order = isNaN(x) || isNaN(y) ? x.localeCompare(y) : x - y;
    return down ? -order : order;
  });
  table.tBodies[0].append(...rows);
}
// Every word of a filter must be in the row; `name>0.7`, `name<3` and `name=adam` read a column.
function matcher(word, heads) {
  const [, name, sign, wanted] = word.match(/^(.+?)([<>=])(.+)$/) ?? [];
  const column = name ? heads.findIndex((h) => h.title.toLowerCase().endsWith(name)) : -1;
  if (column < 0) return (row) => row.textContent.toLowerCase().includes(word);
  return (row) => {
    const value = valueOf(row.cells[column]).toLowerCase();
    if (sign === "=") return value === wanted;
    return value !== "" && (sign === ">" ? Number(value) > wanted : Number(value) < wanted);
  };
}
function startTools(tools) {
  const table = tools.nextElementSibling.querySelector("table");
  const heads = [...table.querySelectorAll("th")];
  const style = tools.appendChild(document.createElement("style"));
  table.id ||= `t${[...document.querySelectorAll("table")].indexOf(table)}`;
  const boxes = [...tools.querySelectorAll("[data-column]")];
  const showColumns = () => {
    const off = boxes.filter((box) => !box.checked).map((box) => Number(box.dataset.column) + 1);
    const rule = (n) => `#${table.id} tr > :nth-child(${n}) { display: none; }`;
    style.textContent = off.map(rule).join("");
  };
  const filter = tools.querySelector("[data-filter]");
  const showRows = () => {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const tests = words.map((word) => matcher(word, heads));
    const rows = [...table.tBodies[0].rows];
    for (const row of rows) row.hidden = !tests.every((test) => test(row));
    const shown = rows.filter((row) => !row.hidden).length;
    tools.querySelector("[data-count]").textContent =
      shown < rows.length ? `${shown} of ${rows.length} rows` : "";
  };
  boxes.forEach((box) => box.addEventListener("change", showColumns));
  filter.addEventListener("input", showRows);
  showColumns();
}
function start() {
  near.disconnect();
  for (const place of document.querySelectorAll("[data-figure]")) {
    // What is seen is drawn at once, so that a page of the board that changes does not flicker.
    const { top, bottom } = place.getBoundingClientRect();
    bottom > 0 && top < innerHeight ? draw(place) : near.observe(place);
  }
  for (const select of document.querySelectorAll("select[data-draws]")) {
    const place = document.getElementById(select.dataset.draws);
    select.addEventListener("change", () => {
      place.dataset.figure = select.value;
      draw(place);
      place.setAttribute("aria-label", `Figure: ${select.selectedOptions[0].textContent}`);
    });
  }
  for (const table of document.querySelectorAll("table.sortable")) {
    table.querySelectorAll("thead th").forEach((head, column) => {
      const sort = () => sortRows(table, column, head.classList.contains("up"));
      head.addEventListener("click", sort);
      head.addEventListener("keydown", (event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        sort();
      });
    });
  }
  document.querySelectorAll(".tools").forEach(startTools);
  document.documentElement.dataset.drawn ??= 0;
}
figures = JSON.parse(document.getElementById("figures").textContent);
start();
