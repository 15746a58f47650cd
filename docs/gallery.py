"""Make the pictures of the pages: python docs/gallery.py [explorer report figures circuits answers]

Needs chromium. `figures` are the paper's, from the package's checkpoints and result files, and
`circuits` those of three shipped models (four minutes together). `answers` asks SmolLM2 for two
of its answers (ten minutes); where it is not installed, their pictures stay as they are.
"""

import os
import re
import subprocess
import sys
import tempfile
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS.parent))

import plotly.express as px  # noqa: E402

import retrieval_interp as ri  # noqa: E402
from retrieval_interp.explorer.server import ExplorerServer  # noqa: E402
from retrieval_interp.reproduce.evidence import Evidence  # noqa: E402
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
        page.locator(".scored tbody tr.selected").wait_for(timeout=120_000)
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
    grids = [evidence.grid(f"section7-{name}")[0] for name in ("ic", "ic-5", "nonic")]
    asked = ["every symbol, D = 3", "every symbol, D = 5", "the last alone, D = 3"]
    whole = [{"asked": name, **row} for name, grid in zip(asked, grids) for row in grid["depths"]]
    for row in whole:
        row |= {"up": row["max"] - row["mean"], "down": row["mean"] - row["min"]}
    parts = [
        {"layers": row["layers"], "symbol": symbol, "loss": loss}
        for row in grids[0]["depths"]
        for symbol, loss in zip(grids[0]["asked"], row["partial_losses"])
    ]
    style = {"x": "layers", "template": "plotly_white", "range_y": [0, None], "markers": True}
    style["labels"] = {"mean": "final validation MSE", "loss": "final partial MSE, mean of runs"}
    bars = {"error_y": "up", "error_y_minus": "down"}
    drawn: dict[str, Any] = {
        "figure-4-left": px.line(whole, y="mean", color="asked", **bars, **style),
        "figure-4-right": px.line(parts, y="loss", color="symbol", **style),
    }
    for name in ("transformer-a", "transformer-b", "transformer-c"):
        trained = evidence.trained(name)
        worth, task = trained.worth, trained.checkpoint.task
        plateau, name_of_loss = task.plateau, task.loss_name
        drawn[f"figure-5-{name}"] = ri.draw_circuit(
            trained.circuit,
            trained.checkpoint.config.layers,
            task=task,
            arrows=ri.worth_of_paths(worth.ablated, worth.combined_loss, plateau, name_of_loss),
        )
    series, _ = evidence.series("transformer-d")
    drawn["figure-6-transformer-d"] = ri.loss_figure(series)
    drawn["figure-7-transformer-d"] = ri.crossing_figure(series)
    with page_in_chromium(viewport={"width": 900, "height": 480}) as (page, _):
        for name, figure in drawn.items():
            plot(folder, page, name, figure)


def plot(folder: Path, page: Any, name: str, figure: Any) -> None:
    """A Plotly figure as docs/NAME.png, or a circuit as docs/NAME.svg."""
    if isinstance(figure, str):
        return write_whole(DOCS / f"{name}.svg", figure + "\n")
    write_whole(folder / f"{name}.html", figure.to_html(include_plotlyjs=True))
    page.goto((folder / f"{name}.html").as_uri())
    page.locator(".main-svg").first.wait_for()
    page.locator(".plotly-graph-div").screenshot(path=DOCS / f"{name}.png")


def circuits(folder: Path) -> None:
    """`small` as a search finds it; `repeated` and `k-hop-7` from their shipped circuits.

    And that of guide/own-model.md, whose code is run.
    """
    example = str(DOCS.parent / "examples" / "draw_circuit.py")
    subprocess.run([sys.executable, example, "small", DOCS / "small-circuit.svg"], check=True)
    for name, examples in (("repeated", 512), ("k-hop-7", 128)):
        bench = ri.open(name, examples=examples, progress=lambda items, what: items)
        bench.load(str(RESULTS / f"{name}.circuit.json"))
        score, circuit = bench.score(controls=0).data, None
        if name == "k-hop-7":  # only what carries; dozens of paths enable
            circuit = replace(score.circuit, enabling=(), redundant=())
        draw(f"{name}-circuit", bench, score, circuit)
    page = (DOCS / "guide" / "own-model.md").read_text()
    code = "\n".join(re.findall(r"^```python\n(.*?)^```", page, re.S | re.M))
    names: dict[str, Any] = {"__name__": "__main__"}
    os.chdir(folder)  # where it writes its report
    exec(compile(code, "own-model.md", "exec"), names)
    draw("own-model", names["bench"], names["score"].data)


def draw(name: str, bench: Any, score: Any, circuit: Any = None) -> None:
    """A scored circuit, or a part of it with only the roles of its paths, as docs/NAME.svg."""
    roles = {role for row in score.paths for role in row.path.path}
    losses = {row.path: row.removed_loss for row in score.paths}
    intact, uninformed = score.intact_loss, score.uninformed_loss
    drawn = ri.draw_circuit(
        circuit or score.circuit,
        bench.model.cfg.n_layers,
        sorted(roles, reverse=True) if circuit else None,
        task=bench.task,
        batch=bench.batch,
        enables=score.enables,
        arrows=ri.worth_of_paths(losses, intact, uninformed, bench.task.loss_name),
    )
    write_whole(DOCS / f"{name}.svg", drawn + "\n")


def answers(folder: Path) -> None:
    """Answers of SmolLM2: to a prompt, and two by the benchmark that measures them."""
    try:
        model = ri.smollm2()
    except ri.InputError as missing:
        print(f"why-*.png stay as they are: {missing}")
        return
    found = ri.why(model, "The capital of France is")
    ri.why_view(found, model).save_html(folder / "why-france.html")
    script = str(DOCS.parent / "benchmarks" / "why_behaviours.py")
    asked = ["--behaviours", *ANSWERS, "--seeds", "0", "--pages", str(folder)]
    subprocess.run([sys.executable, script, *asked], check=True)
    size = {"viewport": {"width": 1000, "height": 900}, "device_scale_factor": 2}
    with page_in_chromium(**size) as (page, _):
        for name in ("france", *ANSWERS):
            page.goto((folder / f"why-{name}.html").as_uri())
            page.locator(".units:not([hidden])").screenshot(path=DOCS / f"why-{name}.png")


ANSWERS = ("capital", "names")
RESULTS = DOCS.parent / "retrieval_interp" / "results"
PICTURES = {
    "explorer": explorer,
    "report": report,
    "figures": figures,
    "circuits": circuits,
    "answers": answers,
}

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        for name in sys.argv[1:] or PICTURES:
            PICTURES[name](Path(folder))
