"use strict";
// Sorting: a click or a key on a heading; again turns the order round; empty cells stay last.
function key(row, column) {
  const cell = row.cells[column];
  const text = cell.dataset.value ?? cell.textContent.trim();
  if (text === "") return null;
  const number = Number(text);
  return Number.isNaN(number) ? text : number;
}
function compare(a, b) {
  if (typeof a === "number" && typeof b === "number") return a - b;
  return String(a).localeCompare(String(b));
}
function sort(heading) {
  const table = heading.closest("table");
  const down = heading.getAttribute("aria-sort") === "ascending";
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", down ? "descending" : "ascending");
  const body = table.tBodies[0];
  const rows = Array.from(body.rows, (row) => [key(row, heading.cellIndex), row]);
  rows.sort(([a], [b]) => {
    if (a === null || b === null) return (a === null) - (b === null);
    return down ? compare(b, a) : compare(a, b);
  });
  body.append(...rows.map(([, row]) => row));
}
for (const button of document.querySelectorAll("thead th button")) {
  button.addEventListener("click", () => sort(button.closest("th")));
}
