// the page of results: filters of the table, pairs of methods, ranks against budgets; without a script its tables stand
const make = (tag, attributes = {}, ...children) => {
  const made = tag === "svg" || attributes.svg
    ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [key, text] of Object.entries(attributes)) if (key !== "svg") made.setAttribute(key, text);
  made.append(...children);
  return made;
};
const drawn = (tag, attributes, ...children) => make(tag, { svg: true, ...attributes }, ...children);
const chooser = (name, values, action, chosen) => {
  const select = make("select", {}, ...values.map(([value, text]) => make("option", { value }, text)));
  if (chosen !== undefined) select.value = chosen;
  select.addEventListener("change", action);
  return [select, make("label", {}, name, select)];
};
const texts = (table, column) => [...table.tBodies[0].rows].map(row => row.cells[column].textContent);
const heads = table => [...table.tHead.rows[0].cells].map(cell => cell.textContent.replace(/[↕▲▼]/g, "").trim());
// to two digits of the spread, with its sign
const signed = (x, spread) =>
  (x < 0 ? "" : "+") + x.toFixed(Math.min(4, Math.max(0, 1 - Math.floor(Math.log10(spread || 1)))));
// what has no bounds has null for both
const minus = x => x === null ? null : -x;
const interval = (d, low, high) => signed(d, high - low || Math.abs(d))
  + (low === null ? " (no interval)" : ` [${signed(low, high - low)}, ${signed(high, high - low)}]`);
const widthOf = box => Math.min(680, box.parentElement.clientWidth);

// search: a row is shown if it has the chosen cells and every word
function filter(box) {
  const table = document.getElementById("cells"), names = heads(table);
  const count = make("output", { "aria-live": "polite" });
  const update = () => {
    const words = search.value.toLowerCase().split(/\s+/);
    let shown = 0;
    for (const row of table.tBodies[0].rows) {
      const text = row.textContent.toLowerCase();
      const fits = choosers.every(([column, select]) => !select.value || row.cells[column].textContent === select.value);
      row.hidden = !(fits && words.every(word => text.includes(word)));
      shown += !row.hidden;
    }
    count.textContent = `${shown} of ${table.tBodies[0].rows.length} rows`;
  };
  const choosers = ["protocol", "budget", "run", "data set", "method"].map(name => {
    const column = names.indexOf(name), values = [...new Set(texts(table, column))].sort();
    const [select, label] = chooser(name, [["", "all"], ...values.map(v => [v, v])], update);
    box.append(label);
    return [column, select];
  });
  const search = make("input", { type: "search", placeholder: "words" });
  search.addEventListener("input", update);
  box.append(make("label", {}, "search", search), count);
  update();
}

// pairs: differences that were computed beforehand, picked and drawn
function pair(box) {
  const data = JSON.parse(document.getElementById("paired").textContent), body = document.getElementById("pairs");
  const [shown, ...two] = box.dataset.pair.split(" "), selects = {}, plot = make("div", { style: "flex-basis: 100%" });
  const names = { mnll: "MNLL", rmse: "RMSE", error: "error rate" };
  const update = () => {
    const { labels, pairs, setting } = data[selects.run.value];
    const [metric, a, b] = ["metric", "first", "second"].map(key => selects[key].value);
    const rows = pairs.filter(row => row[0] === metric && (row[2] === a && row[3] === b || row[2] === b && row[3] === a))
      .map(([, dataset, first, , d, low, high, p, n]) =>
        first === a ? [dataset, d, low, high, p, n] : [dataset, -d, minus(high), minus(low), p, n]);
    body.caption.firstElementChild.textContent =
      `${labels[a]} minus ${labels[b]}: ${names[metric]}, ${selects.run.value}, ${setting}`;
    body.tHead.rows[0].cells[1].firstElementChild.textContent = `difference of ${names[metric]}`;
    body.tBodies[0].replaceChildren(...rows.map(([dataset, d, low, high, p, n]) => {
      const row = make("tr", {}, make("td", {}, dataset),
        make("td", { "data-value": d, class: "number" }, interval(d, low, high)),
        make("td", { "data-value": p }, p.toPrecision(2)), make("td", { "data-value": n }, n));
      return row;
    }));
    plot.replaceChildren(forest(rows, labels[a], labels[b], names[metric], widthOf(box)));
  };
  const refill = () => {
    const { labels, pairs } = data[selects.run.value], kept = selects.first ? [selects.first.value, selects.second.value] : two;
    const metrics = [...new Set(pairs.map(row => row[0]))], options = Object.entries(labels);
    const choose = (name, key, values, chosen) => [selects[key], fields[key]] = chooser(name, values, update, chosen);
    const fields = {};
    choose("metric", "metric", metrics.map(m => [m, names[m]]), metrics[0]);
    choose("first", "first", options, labels[kept[0]] ? kept[0] : options[0][0]);
    choose("second", "second", options, labels[kept[1]] ? kept[1] : options[1][0]);
    box.replaceChildren(run, fields.metric, fields.first, fields.second, plot);
    update();
  };
  let run;
  [selects.run, run] = chooser("run", Object.entries(data).map(([name, { setting }]) => [name, `${name} (${setting})`]),
    refill, shown);
  refill();
}

// intervals of a difference, each divided by its largest end, because data sets have units of their own
function forest(rows, a, b, metric, width) {
  const height = 26 * rows.length + 66, left = 130, half = (width - left) / 2 - 8, middle = left + half + 4;
  const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${a} minus ${b}, ${metric}` });
  svg.append(drawn("line", { class: "axis", x1: middle, x2: middle, y1: 0, y2: height - 60 }));
  rows.forEach(([dataset, d, low, high], i) => {
    const y = 26 * i + 14, most = Math.max(Math.abs(d), Math.abs(low), Math.abs(high)) || 1, at = x => middle + half * x / most;
    svg.append(drawn("text", { x: left - 8, y: y + 4, "text-anchor": "end" }, dataset),
      drawn("circle", { class: "mark", cx: at(d), cy: y, r: 4 }));
    if (low !== null) svg.append(drawn("line", { class: "mark", x1: at(low), x2: at(high), y1: y, y2: y }));
  });
  svg.append(drawn("text", { x: middle - 12, y: height - 40, "text-anchor": "end" }, `← ${a}`),
    drawn("text", { x: middle + 12, y: height - 40 }, `${b} →`),
    drawn("text", { x: middle, y: height - 22, "text-anchor": "middle" }, "is better"),
    drawn("text", { x: width / 2, y: height - 4, "text-anchor": "middle" }, `difference of ${metric}, each row on its own scale`));
  return svg;
}

// ranks: a line a method from the table below
function ranks(box) {
  const table = document.getElementById("ranks");
  if (!table) return;
  const [, ...budgets] = heads(table), labels = texts(table, 0);
  const values = [...table.tBodies[0].rows].map(row => [...row.cells].slice(1).map(cell => +cell.textContent));
  const worst = Math.max(...values.flat()), height = 360, width = widthOf(box), last = width - 170;
  const x = i => 60 + (last - 60) * i / Math.max(budgets.length - 1, 1), y = rank => 20 + (height - 70) * (rank - 1) / Math.max(worst - 1, 1);
  const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "Mean rank of every method at every budget; the table below has the numbers" });
  budgets.forEach((budget, i) => svg.append(drawn("line", { class: "axis", x1: x(i), x2: x(i), y1: 15, y2: height - 45 }),
    drawn("text", { x: x(i), y: height - 25, "text-anchor": "middle" }, budget)));
  for (let rank = 1; rank <= worst; rank += 1)
    svg.append(drawn("text", { x: 45, y: y(rank) + 4, "text-anchor": "end" }, String(rank)));
  const ends = values.map((row, i) => [y(row.at(-1)), i]).sort((a, b) => a[0] - b[0]);
  let above = 0; // labels at the right end keep a distance from each other
  const places = Object.fromEntries(ends.map(([at, i]) => [i, above = Math.max(at, above + 15)]));
  const lines = values.map((row, i) => {
    const line = drawn("polyline", { class: "grey", points: row.map((rank, j) => `${x(j)},${y(rank)}`).join(" ") });
    svg.append(line, drawn("text", { x: last + 10, y: places[i] + 4 }, labels[i]));
    return line;
  });
  const [select, label] = chooser("highlight", labels.map((text, i) => [i, text]), () =>
    lines.forEach((line, i) => line.classList.toggle("mark", i === +select.value)), ends[0][1]);
  lines[ends[0][1]].classList.add("mark");
  box.append(label, svg);
}

for (const box of document.querySelectorAll("[data-explore]"))
  ({ filter, pair, ranks })[box.dataset.explore](box);
