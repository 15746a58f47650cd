"""The paper's figures from our own numbers: curves as Plotly pages and JSON, circuits as SVG.

Figure 4 comes from the grids, figure 5 from the circuits, figures 6 and 7 and appendix D from the
series, and appendix C is a set of circuitsvis pages. Figures without numbers are left out.
"""

from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from retrieval_interp.circuits.draw.svg import draw_circuit
from retrieval_interp.emergence.curves import attention_figure, crossing_figure, loss_figure
from retrieval_interp.reproduce.evidence import Evidence
from retrieval_interp.storage.files import write_whole
from retrieval_interp.sweep.findings import UNLEARNED
from retrieval_interp.views.attention import attention_view

_TRANSFORMERS = ("transformer-a", "transformer-b", "transformer-c", "transformer-d", "small")


def final_loss_figure(grids: dict[str, dict[str, Any]]) -> go.Figure:
    """Figure 4, left: the final validation loss by depth, mean and range over the seeds."""
    figure = go.Figure()
    for name, summary in grids.items():
        rows, title = summary["depths"], _plain(f"{name} ({summary['scale']})")
        up = [abs(row["max"] - row["mean"]) for row in rows]
        down = [abs(row["mean"] - row["min"]) for row in rows]
        error = {"type": "data", "array": up, "arrayminus": down}
        layers, mean = [row["layers"] for row in rows], [row["mean"] for row in rows]
        figure.add_scatter(x=layers, y=mean, error_y=error, name=title)
    figure.add_hline(UNLEARNED, line_dash="dot", annotation_text="0.7: nothing learned")
    return _by_depth(figure, "final validation MSE")


def partial_loss_figure(summary: dict[str, Any]) -> go.Figure:
    """Figure 4, right: the partial losses by depth, one line per place in the chain."""
    figure, rows = go.Figure(), summary["depths"]
    columns = zip(*(row["partial_losses"] for row in rows))
    for name, losses in zip(summary["asked"], columns):
        figure.add_scatter(x=[row["layers"] for row in rows], y=losses, name=_plain(name))
    figure.update_layout(title=_plain(f"{summary['grid']}, {summary['scale']}"))
    return _by_depth(figure, "final partial MSE, mean of the runs")


def _by_depth(figure: go.Figure, loss: str) -> go.Figure:
    figure.update_layout(template="plotly_white", xaxis_title="layers", yaxis_title=loss)
    return figure.update_yaxes(rangemode="tozero")


def _plain(text: str) -> str:
    """Plotly reads tags in its texts as markup."""
    return escape(text, quote=False)


def figures(evidence: Evidence) -> Iterator[tuple[str, go.Figure | str]]:
    """Name and figure, for all that there are numbers for; circuits are SVG."""
    grids = {name: evidence.grid(name) for name in ("section7-ic", "section7-nonic")}
    known = {name: summary for name, summary in grids.items() if summary is not None}
    if known:
        yield "figure-4-left", final_loss_figure(known)
    if "section7-ic" in known:
        yield "figure-4-right", partial_loss_figure(known["section7-ic"])
    for name in _TRANSFORMERS:
        trained, found = evidence.trained(name), evidence.series(name)
        if trained is not None:
            task = trained.checkpoint.task
            drawn = draw_circuit(
                trained.circuit,
                trained.checkpoint.config.layers,
                losses=trained.worth.ablated,
                task=task,
                intact=trained.worth.combined_loss,
                uninformed=task.plateau or 1.0,
            )
            yield f"figure-5-{name}", drawn
        if found is not None:
            yield f"figure-6-{name}", loss_figure(found[0])
            yield f"figure-7-{name}", crossing_figure(found[0])
            yield f"appendix-D-{name}", attention_figure(found[0])


def write_figures(evidence: Evidence, folder: Path) -> Iterator[Path]:
    """Write every figure, with one circuitsvis page per transformer (appendix C); gives the files.

    Curves become pages that work offline and Plotly's JSON, circuits SVG.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, figure in figures(evidence):
        if isinstance(figure, str):
            files = {f"{name}.svg": figure}
        else:
            page = figure.to_html(include_plotlyjs=True)
            files = {f"{name}.html": page, f"{name}.json": figure.to_json()}
        for file, content in files.items():
            write_whole(folder / file, content)
            yield folder / file
    for name in _TRANSFORMERS:
        trained = evidence.trained(name)
        if trained is not None:
            task, model = trained.checkpoint.task, trained.checkpoint.model
            view = attention_view(model, task, task.sample(4, split="test"), range(4))
            yield view.save_html(folder / f"appendix-C-{name}.html")
