"""Make the pictures of README and the other pages: python docs/gallery.py [figures growth]

Needs chromium; about a minute. With `figures` only those of reproduction.md, which are drawn from
the package's checkpoints and result files, as `reproduce --figures` does; with `growth` only that
of speed.md, from what `benchmarks/growth.py --json` has written.
"""

import json
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
sys.path[:0] = [str(DOCS.parent), str(DOCS.parent / "benchmarks")]

import plotly.express as px  # noqa: E402
from growth import LABELS  # noqa: E402

import retrieval_interp as ri  # noqa: E402
from retrieval_interp.explorer.server import ExplorerServer  # noqa: E402
from retrieval_interp.reproduce.evidence import Evidence  # noqa: E402
from retrieval_interp.reproduce.gallery import figures as paper_figures  # noqa: E402
from retrieval_interp.storage.files import write_whole  # noqa: E402
from tests.browser import page_in_chromium  # noqa: E402


def explorer(folder: Path) -> None:
    """A search, its score, and a selected path."""
    bench = ri.open("small")
    server = ExplorerServer(bench)
    threading.Thread(target=server.serve, daemon=True).start()
    with page_in_chromium(server.address, viewport={"width": 1440, "height": 950}) as (page, _):
        page.goto(server.address)
        page.locator("[data-head='L2.H0']").click(timeout=120_000)
        page.locator(".edit [data-path='L2.H0 s0<-s2']").click()
        page.get_by_role("button", name="Discover").click()
        page.get_by_role("button", name="Undo", disabled=False).wait_for(timeout=120_000)
        page.get_by_role("button", name="Score").click()
        page.locator(".circuit tbody tr.selected").wait_for(timeout=120_000)
        page.wait_for_timeout(1500)
        page.screenshot(path=DOCS / "explorer.png", full_page=True)


def report(folder: Path) -> None:
    """The head of the report, and circuitsvis's part of it."""
    bench = ri.open("small", progress=lambda items, what: items)
    bench.discover()
    page_file = bench.report(folder / "report.html")
    with page_in_chromium(viewport={"width": 1000, "height": 820}) as (page, _):
        page.goto(page_file.as_uri())
        page.locator(".views canvas").first.wait_for(timeout=120_000)
        page.wait_for_timeout(2000)
        page.screenshot(path=DOCS / "report.png")
        page.locator(".views canvas").nth(2).hover()
        page.wait_for_timeout(2000)
        page.locator(".views").screenshot(path=DOCS / "attention.png")


def figures(folder: Path) -> None:
    """The paper's figures 4 to 7 from our numbers."""
    evidence = Evidence(folder / "no runs")
    with page_in_chromium(viewport={"width": 900, "height": 480}) as (page, _):
        for name, figure in paper_figures(evidence):
            if name.startswith("figure-") and not name.endswith(("6-small", "7-small")):
                plot(folder, page, name, figure)


def growth(folder: Path) -> None:
    """How the costs grow."""
    rows = json.loads((DOCS.parent / "benchmarks/results/growth.json").read_text())["rows"]
    plot_of_all = px.line(
        [{**row, "varied": LABELS[row["varied"]]} for row in rows],
        x="size", y="seconds", color="cost of", symbol="cost of", facet_col="varied",
        markers=True, log_x=True, log_y=True, template="plotly_white",
    ).update_xaxes(matches=None)  # fmt: skip
    with page_in_chromium(viewport={"width": 1000, "height": 480}) as (page, _):
        plot(folder, page, "growth", plot_of_all)


def plot(folder: Path, page: Any, name: str, figure: Any) -> None:
    """A Plotly figure or an SVG as docs/NAME.png."""
    if isinstance(figure, str):
        page.set_content(figure)
        page.locator("svg").screenshot(path=DOCS / f"{name}.png")
        return
    write_whole(folder / f"{name}.html", figure.to_html(include_plotlyjs=True))
    page.goto((folder / f"{name}.html").as_uri())
    page.locator(".main-svg").first.wait_for()
    page.locator(".plotly-graph-div").screenshot(path=DOCS / f"{name}.png")


PICTURES = {"explorer": explorer, "report": report, "figures": figures, "growth": growth}

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        for name in sys.argv[1:] or PICTURES:
            PICTURES[name](Path(folder))
