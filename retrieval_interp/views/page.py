"""HTML that is looked at: the style, tables, whole pages, and what notebooks display.

Everything that came from a file or a user is escaped. Nothing here asks the network for anything.
Pages follow the system's light or dark setting, notebooks their own theme.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from retrieval_interp.storage.files import check_writable, write_whole

STYLE = """
.ri { --soft: color-mix(in srgb, currentColor 65%, transparent);
  --line: color-mix(in srgb, currentColor 17%, transparent);
  --card: color-mix(in srgb, currentColor 5%, transparent);
  --good: #1f8a55; --bad: #c9443a; --heat: 47 111 190; line-height: 1.5 }
.ri h1 { font-size: 1.5rem; margin: 0 0 .3rem }
.ri h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem }
.ri p { max-width: 52rem; margin: .5rem 0 }
.ri .soft, .ri figcaption { color: var(--soft); font-size: .9em }
.ri .verdict { background: var(--card); border-left: 4px solid var(--bad); padding: .8rem 1rem }
.ri .verdict.good { border-color: var(--good) }
.ri .big { font-size: 1.5em; font-weight: 600; font-variant-numeric: tabular-nums }
.ri .scroll { overflow-x: auto }
.ri .scroll > svg { max-width: 100%; min-width: 34rem; height: auto }
.ri table { border-collapse: collapse; font-size: .93em; margin: .6rem 0; background: none }
.ri th, .ri td { text-align: left !important; vertical-align: top; padding: .25rem .9rem .25rem 0;
  border: 0; border-bottom: 1px solid var(--line); background: none; color: inherit }
.ri tr { background: none !important }  /* notebooks stripe tables */
.ri .nowrap { white-space: nowrap } .ri .wide { min-width: 16rem }
.ri .number { text-align: right !important; font-variant-numeric: tabular-nums;
  white-space: nowrap }
.ri th button { all: unset; cursor: pointer; font-weight: 600 }
.ri th button:focus-visible { outline: 2px solid currentColor; outline-offset: 2px }
.ri th[aria-sort=ascending] button::after { content: " \\2191" }
.ri th[aria-sort=descending] button::after { content: " \\2193" }
.ri .maps { display: flex; flex-wrap: wrap; gap: 1.2rem; margin-bottom: 1.2rem }
.ri .maps figure { margin: 0 }
.ri .maps td, .ri .maps th { border: 0; padding: .15rem; font-size: .72rem;
  text-align: center !important; min-width: 1.9rem; height: 1.2rem; line-height: 1.2rem;
  font-weight: 400 }
.ri .maps td[style] { background: rgb(var(--heat) / var(--w)) }
.ri .maps td.hot { color: #fff }
.ri .maps td.in { outline: 2px solid #e0862b; outline-offset: -2px }
.ri .views { background: #fff; color: #111; padding: .6rem; border-radius: 6px }
[data-jp-theme-light=false] .ri .views { background: #eeeeee; filter: invert(1) hue-rotate(180deg) }
.ri dt { color: var(--soft); font-size: .9em } .ri dd { margin: 0 0 .6rem }
.ri code { font-size: .88em; overflow-wrap: anywhere }
"""

_PAGE_STYLE = """
:root { color-scheme: light dark }
body { font: 16px/1.5 system-ui, sans-serif; color: #1a1c1f; background: #fff;
  max-width: 62rem; margin: 0 auto; padding: 1.5rem }
@media (max-width: 40rem) { body { padding: 1rem .8rem } }
@media (prefers-color-scheme: dark) { body { color: #e6e8ea; background: #14161a }
  .ri { --good: #58c48c; --bad: #f28b82 }
  .ri .views { background: #ebe9e5; filter: invert(1) hue-rotate(180deg) } }
@media (max-width: 40rem) { .ri .scroll:has(> svg, .wide)::before { color: var(--soft);
  content: "scroll sideways \\2192"; font-size: .8rem } }
@media print { .ri .views { break-inside: avoid } }
"""

# A click on a column's head sorts its table by that column, a second one the other way round.
_SORT = """
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
"""


def render_page(title: str, body: str, sortable: bool = False) -> str:
    """A whole HTML page around a body."""
    script = f"<script>{_SORT}</script>" if sortable else ""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}{_PAGE_STYLE}</style></head>"
        f'<body class="ri">\n{body}\n{script}</body></html>\n'
    )


def render_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    classes: Sequence[str] = (),
    sortable: bool = False,
) -> str:
    """A table; `classes` name the columns' classes (`number`, `nowrap`, `wide`)."""
    classes = [*classes, *[""] * (len(header) - len(classes))]

    def cell(tag: str, content: str, name: str) -> str:
        return f'<{tag} class="{name}">{content}</{tag}>' if name else f"<{tag}>{content}</{tag}>"

    def head(text: str) -> str:
        return f'<button type="button">{escape(text)}</button>' if sortable else escape(text)

    heads = "".join(cell("th", head(text), name) for text, name in zip(header, classes))
    body = "".join(
        "<tr>"
        + "".join(cell("td", escape(text), name) for text, name in zip(row, classes))
        + "</tr>"
        for row in rows
    )
    kind = ' class="sortable"' if sortable else ""
    return (
        f'<div class="scroll"><table{kind}><thead><tr>{heads}</tr></thead><tbody>{body}</tbody>'
        "</table></div>"
    )


@dataclass(frozen=True, repr=False)
class View:
    """Something to look at: HTML in a notebook, text in a terminal.

    Attributes:
        title: what it shows.
        html: a fragment; a notebook displays it, `save_html` makes a page of it.
        text: the same for a terminal, which `repr` gives.
        data: what is shown, to go on computing with.
    """

    title: str
    html: str
    text: str
    data: Any = None

    def _repr_html_(self) -> str:
        return f'<style>{STYLE}</style><div class="ri">{self.html}</div>'

    def __repr__(self) -> str:
        return self.text

    def save_html(self, path: str | Path) -> Path:
        """Write the view as a page that needs no network.

        Raises:
            InputError: the file cannot be written.
        """
        path = Path(path)
        check_writable(path)
        body = f"<h1>{escape(self.title)}</h1>\n{self.html}"
        write_whole(path, render_page(self.title, body, sortable=True))
        return path
