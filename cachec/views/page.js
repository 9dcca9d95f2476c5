"use strict";
// Tables are sorted, filtered and shown in pieces; what a mark of a plot says appears at the pointer. Without scripts
// the page shows all of it.

const PIECE = 50;

function value(row, column) {
  const cell = row.cells[column];
  return cell.dataset.sort === undefined ? cell.textContent : Number(cell.dataset.sort);
}

function compare(a, b) {
  return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
}

function enhance(region) {
  const table = region.querySelector("table");
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  let rows = [...body.rows];
  let most = PIECE;

  const tools = document.createElement("div");
  tools.className = "tools";
  const label = document.createElement("label");
  label.append("Filter ");
  const input = document.createElement("input");
  input.type = "search";
  input.setAttribute("aria-label", "Filter " + table.caption.textContent);
  label.append(input);
  const more = document.createElement("button");
  more.type = "button";
  more.textContent = "Show more rows";
  const status = document.createElement("span");
  status.setAttribute("role", "status");
  tools.append(label, status, more);
  if (rows.length > 10) region.before(tools);

  function show() {
    const wanted = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    let fit = 0;
    for (const row of rows) {
      const fits = wanted.every((word) => row.textContent.toLowerCase().includes(word));
      row.hidden = !fits || ++fit > most;
    }
    const shown = Math.min(fit, most);
    status.textContent = shown + " of " + fit + (fit < rows.length ? " rows that fit" : " rows");
    more.hidden = fit <= most;
  }

  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      // Numbers begin with the largest, words with the first.
      const numeric = rows.length > 0 && typeof value(rows[0], column) === "number";
      const now = head.getAttribute("aria-sort");
      const order = now === null ? (numeric ? "descending" : "ascending") : now === "ascending" ? "descending" : "ascending";
      heads.forEach((each) => each.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", order);
      const sign = order === "ascending" ? 1 : -1;
      rows = rows.map((row) => [value(row, column), row]).sort((a, b) => sign * compare(a[0], b[0])).map((pair) => pair[1]);
      body.append(...rows);
      show();
    });
  });
  input.addEventListener("input", () => { most = PIECE; show(); });
  more.addEventListener("click", () => { most += 10 * PIECE; show(); });
  show();
}

document.querySelectorAll("[data-many]").forEach(enhance);

const tip = document.createElement("div");
tip.id = "tip";
tip.hidden = true;
document.body.append(tip);
for (const mark of document.querySelectorAll(".plot title")) {
  mark.parentNode.dataset.tip = mark.textContent;  // at once, where the browser's own would come late
  mark.remove();
}
document.addEventListener("pointermove", (event) => {
  const mark = event.target.closest ? event.target.closest("[data-tip]") : null;
  tip.hidden = mark === null;
  if (mark === null) return;
  tip.textContent = mark.dataset.tip;
  tip.style.left = Math.max(0, Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8)) + "px";
  tip.style.top = Math.max(0, Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 8)) + "px";
});
