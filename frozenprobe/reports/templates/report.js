"use strict";

// Sorting: a click on a heading; a cell without a value stands behind whichever way.
for (const table of document.querySelectorAll("table.sortable")) {
  const headings = Array.from(table.tHead.rows[0].cells);
  headings.forEach((heading, column) => {
    const isNumber = !heading.classList.contains("text");
    heading.querySelector("button").addEventListener("click", () => {
      const before = heading.getAttribute("aria-sort");
      const ascending = before ? before === "descending" : !isNumber;
      headings.forEach((other) => other.removeAttribute("aria-sort"));
      heading.setAttribute("aria-sort", ascending ? "ascending" : "descending");
      const value = (row) => row.cells[column].dataset.value;
      const compare = (a, b) => {
        if (value(a) === "" || value(b) === "") return (value(a) === "") - (value(b) === "");
        const order = isNumber ? value(a) - value(b) : value(a).localeCompare(value(b));
        return ascending ? order : -order;
      };
      const body = table.tBodies[0];
      body.append(...Array.from(body.rows).sort(compare));
    });
  });
}

// Filtering: words in the model's name, and a choice per column.
for (const filters of document.querySelectorAll(".filters")) {
  const table = document.getElementById(filters.dataset.table);
  const count = filters.querySelector("output");
  const apply = () => {
    const words = filters.querySelector("input").value.toLowerCase().split(/\s+/);
    let shown = 0;
    for (const row of table.tBodies[0].rows) {
      const model = row.cells[0].dataset.value.toLowerCase();
      const chosen = Array.from(filters.querySelectorAll("select")).every(
        (select) => select.value === "*" || row.cells[Number(select.dataset.column)].dataset.value === select.value
      );
      row.hidden = !(chosen && words.every((word) => model.includes(word)));
      shown += !row.hidden;
    }
    count.value = shown + " of " + table.tBodies[0].rows.length + " rows";
  };
  filters.addEventListener("input", apply);
  apply();
}

// The legend: which runs the plots show.
const show = (button, shown) => {
  button.setAttribute("aria-pressed", String(shown));
  for (const mark of document.querySelectorAll('[data-run="' + button.dataset.legend + '"]')) {
    mark.classList.toggle("off", !shown);
  }
};
const entries = Array.from(document.querySelectorAll("[data-legend]"));
for (const button of entries) {
  show(button, button.getAttribute("aria-pressed") === "true");
  button.addEventListener("click", () => show(button, button.getAttribute("aria-pressed") !== "true"));
}
for (const button of document.querySelectorAll(".all")) {
  button.addEventListener("click", () => entries.forEach((entry) => show(entry, button.dataset.show === "true")));
}
