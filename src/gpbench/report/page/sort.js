// without a script every table is there; this adds sorting
const button = (text, action) => {
  const made = Object.assign(document.createElement("button"), { type: "button" });
  made.append(...text);
  made.addEventListener("click", action);
  return made;
};

// numbers before words, and what has neither value nor word (-) last, in both directions
const sortValue = cell => cell.dataset.value === undefined ? cell.textContent.trim() : +cell.dataset.value;
const sortKind = x => typeof x === "number" ? 0 : x === "" || x === "-" ? 2 : 1;
const sortOrder = (a, b) => typeof a === "number" ? a - b : a.localeCompare(b, "en", { numeric: true });

function sort(head) {
  const up = head.getAttribute("aria-sort") !== "ascending", body = head.closest("table").tBodies[0];
  for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", up ? "ascending" : "descending");
  const rows = [...body.rows].map(row => [sortValue(row.cells[head.cellIndex]), row]);
  rows.sort(([a], [b]) => sortKind(a) - sortKind(b) || (up ? 1 : -1) * sortOrder(a, b));
  body.append(...rows.map(([, row]) => row));
}

for (const head of document.querySelectorAll("table.sortable thead th"))
  head.append(button([...head.childNodes], () => sort(head)));
