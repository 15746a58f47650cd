"""What the HTML reports share: one page without network, in light and dark, for wide and narrow."""

from collections.abc import Sequence
from html import escape

STYLE = """
:root { color-scheme: light dark; --fg: #1a1c1f; --bg: #ffffff; --soft: #6b7076; --line: #d9dce0;
  --card: #f6f7f9; --good: #1a7f4b; --bad: #b3261e; --heat: 38, 96, 170;
  --hot: #fff; }
@media (prefers-color-scheme: dark) { :root { --fg: #e6e8ea; --bg: #14161a; --soft: #9aa0a6;
  --line: #33373d; --card: #1d2025; --good: #58c48c; --bad: #f28b82; --heat: 110, 168, 254;
  --hot: #10141a; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--fg); background: var(--bg);
  max-width: 60rem; margin: 0 auto; padding: 1.5rem; }
h1 { font-size: 1.5rem; margin: 0 0 .3rem } h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem }
p.soft, td.soft, figcaption { color: var(--soft); font-size: .9rem }
.verdict { background: var(--card); border-left: 4px solid var(--bad); padding: .8rem 1rem }
.verdict.good { border-color: var(--good) }
.scroll { overflow-x: auto }
table { border-collapse: collapse; font-size: .93rem }
th, td { text-align: left; padding: .25rem .9rem .25rem 0; border-bottom: 1px solid var(--line) }
td:nth-child(-n+2) { white-space: nowrap }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums;
  white-space: nowrap }
.maps { display: flex; flex-wrap: wrap; gap: 1.2rem }
.maps figure { margin: 0 }
.maps td, .maps th { border: 0; padding: .15rem; font-size: .7rem; text-align: center;
  min-width: 1.9rem; font-weight: 400 }
.maps td.hot { color: var(--hot) }
.views { background: #fff; color: #111; padding: .5rem; border-radius: 6px }
.scroll > svg { max-width: 100%; min-width: 34rem; height: auto }
.scroll td:nth-child(5):last-child { min-width: 16rem }
.scroll td:nth-child(2):last-child { white-space: normal; overflow-wrap: anywhere }
code { font-size: .88em; overflow-wrap: anywhere }
"""


def page(title: str, sections: Sequence[str]) -> str:
    """A whole page.

    Args:
        title: plain text.
        sections: HTML, in which everything that came from a file is already escaped.
    """
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>\n"
        + "\n".join(sections)
        + "\n</body></html>\n"
    )


def table(header: list[tuple[str, bool]], rows: list[list[str]]) -> str:
    """A table that scrolls where it is too wide.

    Args:
        header: a column's title, and whether it holds numbers.
        rows: plain text, which is escaped here.
    """

    def cell(tag: str, text: str, number: bool) -> str:
        return f"<{tag}{' class=number' if number else ''}>{escape(text)}</{tag}>"

    head = "".join(cell("th", text, number) for text, number in header)
    body = "".join(
        "<tr>"
        + "".join(cell("td", text, number) for text, (_, number) in zip(row, header))
        + "</tr>"
        for row in rows
    )
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody>'
        "</table></div>"
    )
