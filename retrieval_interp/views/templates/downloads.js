// Files made in the page: nothing is asked of anyone.

function csv(rows, loss) {
  const header = ["path", "meaning", "mean attention", `${loss} ablated too`,
    `${loss} cut live`, "what it does"];
  const keys = ["name", "label", "attention", "ablated", "live", "does"];
  const cell = value => `"${String(value ?? "").replaceAll('"', '""')}"`;
  return [header, ...rows.map(row => keys.map(key => row[key]))]
    .map(line => line.map(cell).join(",")).join("\r\n") + "\r\n";
}

function download(name, type, text) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  element("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}
