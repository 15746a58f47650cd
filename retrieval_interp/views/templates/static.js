// The report: a click on an arrow, a row or a cell selects that path everywhere.
{
  const select = path => markPath(document.body, path);
  followPaths(document.body, select);
  select(document.querySelector("[data-path]")?.dataset.path);
}
