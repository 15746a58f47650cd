"""How fast the notebook side responds: python benchmarks/interactive.py [CKPT]

Times from `import` to the first attention view, and from a click in the explorer until the new loss
is sent and until the losses of the other choices are; and the sizes of pages.
"""

import statistics
import sys
import tempfile
import time
from pathlib import Path

start = time.perf_counter()

import retrieval_interp as ri  # noqa: E402


def clicks(explorer, asked):
    """Seconds until the state with the new loss is sent, and until everything is."""
    sent = []
    explorer.observe(lambda change: sent.append(time.perf_counter()), names=["state"])
    first, whole = [], []
    for what in asked:
        sent.clear()
        begun = time.perf_counter()
        explorer._answer(explorer, what)
        whole.append(time.perf_counter() - begun)
        first += [sent[0] - begun] if sent else []  # selecting a path changes no loss
        assert not explorer.state["failed"], explorer.state["said"]
    return first, whole


def main(name):
    bench = ri.open(name)
    view = bench.attention()._repr_html_()
    print(f"from import to the first attention view of {name}: {time.perf_counter() - start:.2f} s")
    explorer = bench.explore()
    strong = [
        {"do": "toggle", "path": f"{head} {path}"}
        for head in bench.heads
        for path in (
            ri.RolePath(*pair) for pair in (bench.intact_attention[head] > 0.5).nonzero().tolist()
        )
    ]
    mechanisms = [
        {"do": "suppose", "line": f"{head} {kind}"}
        for head in bench.heads
        for kind in ("uniform", "identity", "original")
    ]
    for what, asked in (("a path", strong), ("a mechanism", mechanisms)):
        first, whole = clicks(explorer, asked)
        middle, most = statistics.median(first) * 1000, max(first) * 1000
        print(
            f"{len(asked)} clicks on {what}: the new loss is sent after {middle:.0f} ms (median), "
            f"{most:.0f} ms at most; all choices after {statistics.median(whole) * 1000:.0f} ms; "
            f"{len(bench.batch)} examples"
        )
    selected = [
        {"do": "show", "example": 0, "with_circuit": False, "path": one["path"]}
        | dict(zip(("layer", "head"), ri.Head.parse(one["path"].split()[0])))
        for one in strong
    ]
    _, whole = clicks(explorer, selected)
    print(
        f"{len(selected)} paths selected: what each is worth after "
        f"{statistics.median(whole) * 1000:.0f} ms (median), {max(whole) * 1000:.0f} ms at most"
    )
    with tempfile.TemporaryDirectory() as folder:
        page = bench.report(Path(folder) / "report.html").stat().st_size
    print(f"CPU time {time.process_time():.1f} s")
    print(f"attention view {len(view) / 1e6:.2f} MB, report {page / 1e6:.2f} MB")


if __name__ == "__main__":
    main(*sys.argv[1:] or ["small"])
