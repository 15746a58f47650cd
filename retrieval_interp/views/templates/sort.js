// A click on a column header sorts the table by it, a second click reverses the order.
document.querySelectorAll("table.sortable th").forEach((head, column) => {
  const table = head.closest("table"), body = table.tBodies[0];
  column = head.cellIndex;
  head.querySelector("button").onclick = () => {
    const rising = head.getAttribute("aria-sort") !== "ascending";
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", rising ? "ascending" : "descending");
    const value = row => {
      const text = row.cells[column].textContent.trim(), number = Number(text);
      return text && !isNaN(number) ? number : text;
    };
    const order = (a, b) => a === "" ? 1 : b === "" ? -1 : (a < b ? -1 : a > b ? 1 : 0)
      * (rising ? 1 : -1);
    [...body.rows].sort((a, b) => order(value(a), value(b))).forEach(row => body.append(row));
  };
});
