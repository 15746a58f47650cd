// A click on a column header sorts the table by it, a second click reverses the order.
function makeSortable(table) {
  table.dataset.sorts = "";
  const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells];
  const valueOf = (row, column) => {
    const text = row.cells[column].textContent.trim(), number = Number(text);
    return text && text !== "–" ? (isNaN(number) ? text : number) : null;
  };
  // L2.H0 comes before L10.H0.
  const compared = (a, b) => typeof a === "number" && typeof b === "number" ? a - b
    : String(a).localeCompare(String(b), "en", { numeric: true });
  for (const head of heads) {
    head.setAttribute("aria-sort", "none");
    head.querySelector("button").onclick = () => {
      const rising = head.getAttribute("aria-sort") !== "ascending";
      for (const other of heads) other.setAttribute("aria-sort", "none");
      head.setAttribute("aria-sort", rising ? "ascending" : "descending");
      // Empty cells stay at the end.
      const order = (a, b) => a === null ? 1 : b === null ? -1
        : compared(a, b) * (rising ? 1 : -1);
      const values = new Map([...body.rows].map(row => [row, valueOf(row, head.cellIndex)]));
      body.append(...[...body.rows].sort((a, b) => order(values.get(a), values.get(b))));
    };
  }
}
