// Keeps a page of the board up to date: asks the server every few seconds, and takes what changed.
// What a person has chosen (filters, columns, order, marks, open parts) stays as it is.
const EVERY_MS = 3000;
let tag = "";
const all = (selector) => [...document.querySelectorAll(`main ${selector}`)];
function chosen() {
  return {
    texts: all("[data-filter]").map((input) => input.value),
    columns: all("[data-column]").map((box) => box.checked),
    marked: new Set(all("input[name=run]:checked").map((box) => box.value)),
    shown: all("select[data-draws]").map((select) => select.selectedOptions[0].textContent),
    open: all("details").map((part) => part.open),
    orders: all("table").map((table) => {
      const heads = [...table.querySelectorAll("th")];
      const column = heads.findIndex((head) => head.matches(".up, .down"));
      return [column, column >= 0 && heads[column].classList.contains("down")];
    }),
    places: all(".scroll").map((part) => [part.scrollLeft, part.scrollTop]),
  };
}
function restore(kept) {
  const changed = (element, kind) => element.dispatchEvent(new Event(kind));
  all("details").forEach((part, n) => (part.open = kept.open[n] ?? part.open));
  all("input[name=run]").forEach((box) => (box.checked = kept.marked.has(box.value)));
  all("[data-column]").forEach((box, n, boxes) => {
    if (kept.columns.length === boxes.length) box.checked = kept.columns[n];
    changed(box, "change");
  });
  all("table").forEach((table, n) => {
    const [column, down] = kept.orders[n] ?? [-1];
    if (column >= 0 && table.querySelectorAll("th")[column]) sortRows(table, column, down);
  });
  all("[data-filter]").forEach((input, n) => {
    input.value = kept.texts[n] ?? "";
    changed(input, "input");
  });
  all("select[data-draws]").forEach((select, n) => {
    const option = [...select.options].find((one) => one.textContent === kept.shown[n]);
    if (option && option !== select.selectedOptions[0]) {
      option.selected = true;
      changed(select, "change");
    }
  });
  all(".scroll").forEach((part, n) => part.scrollTo(...(kept.places[n] ?? [0, 0])));
}
async function refresh() {
  const inUse = document.activeElement?.matches("select, [data-filter]");
  if (document.hidden || inUse) return;
  const mark = document.getElementById("live");
  try {
    const answer = await fetch(location.href, {
      headers: { Accept: "application/json", ...(tag ? { "If-None-Match": tag } : {}) },
    });
    if (answer.status === 304) return;
    if (!answer.ok) throw new Error(answer.statusText);
    const page = await answer.json();
    tag = answer.headers.get("ETag");
    const kept = chosen();
    all(".js-plotly-plot").forEach(Plotly.purge);
    document.querySelector("main").innerHTML = page.body;
    figures = page.figures;
    start();
    restore(kept);
  } catch (error) {
    if (mark) mark.textContent = "the board does not answer: start it again, then reload this page";
  }
}
setInterval(refresh, EVERY_MS);
