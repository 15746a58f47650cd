"""Milliseconds from a click on a head in the explorer to its answers, in Chromium (docs/speed.md).

    python benchmarks/click_times.py [--models transformer-a ...] [--clicks 4]

The frame moves, the tables change, and last come the losses that the head's mechanisms would give:
medians over heads that were not looked at before, and the slowest.
"""

import argparse
import statistics
import sys
from concurrent.futures import ThreadPoolExecutor, wait

from measure import Rows, benchmark

import retrieval_interp as ri
from retrieval_interp.explorer.server import ExplorerServer
from tests.browser import page_in_chromium

CLICK = """async head => {
  const root = document.querySelector('.ri-explorer'), found = one => root.querySelector(one);
  const start = performance.now(), until = holds => new Promise(done => {
    const look = () => holds() && (watch.disconnect(), done(performance.now() - start));
    const watch = new MutationObserver(look);
    watch.observe(root, {subtree: true, childList: true, characterData: true, attributes: true});
    look();
  });
  found(`[data-head="${head}"]`).click();
  return {
    frame: await until(() => found('.picked').dataset.head === head),
    tables: await until(() => found('.look h4').textContent.startsWith(`${head},`)),
    last: await until(() => !found('.choices').textContent.includes('…')),
  };
}"""


def clicked(bench: ri.Workbench, clicks: int, search: bool) -> list[dict[str, float]]:
    """Click on heads of a fresh page, one after the other; with `search`, only while it runs."""
    server = ExplorerServer(bench)
    serving = ThreadPoolExecutor(1).submit(server.serve)
    first, *others = map(str, bench.heads)
    heads = others[:: max(1, len(others) // clicks)][:clicks]
    with page_in_chromium(server.address) as (page, _):
        page.goto(server.address)
        page.locator(".choices").wait_for()
        page.evaluate(CLICK, first)
        cancel = page.get_by_role("button", name="Cancel")
        if search:
            page.get_by_role("button", name="Discover").click()
            cancel.wait_for()
        times = [page.evaluate(CLICK, head) for head in heads if not search or cancel.is_visible()]
    server.asked.put(sys.exit)  # ends `serve`, which cancels the search
    wait([serving])
    return times


@benchmark({"models": ["small"]}, models=["small", "transformer-a", "k-hop-7"], clicks=4)
def main(options: argparse.Namespace) -> Rows:
    rows = []
    for search in ("no", "yes"):
        for name in options.models:
            times = clicked(ri.open(name), options.clicks, search == "yes")
            rows.append({"model": name, "search": search, "clicks": len(times)})
            for what in ("frame", "tables", "last"):
                each = [one[what] for one in times]
                rows[-1] |= {f"{what}, ms": statistics.median(each), f"slowest {what}": max(each)}
    return rows


if __name__ == "__main__":
    main()
