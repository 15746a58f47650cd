"""The paper's figures from our own numbers, as Plotly HTML and JSON.

Figure 4 from the grids, 5 from the circuits, 6, 7 and appendix D from the series, appendix C as
circuitsvis pages. A figure without numbers is not made.
"""

from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from circuits.draw.figure import circuit_figure
from retrieval_interp.emergence.curves import attention_figure, crossing_figure, loss_figure
from retrieval_interp.reproduce.evidence import Evidence, Trained
from retrieval_interp.storage.files import write_whole
from retrieval_interp.views.attention import attention_view

_TRANSFORMERS = ("transformer-a", "transformer-b", "transformer-c", "transformer-d", "small")
_PLATEAU = 0.7


def final_loss_figure(grids: dict[str, dict[str, Any]]) -> go.Figure:
    """Figure 4, left: the final validation loss by depth, mean and range over the seeds.

    Args:
        grids: summaries of grids by name.
    """
    figure = go.Figure()
    for name, summary in grids.items():
        rows = summary["depths"]
        means = [row["mean"] for row in rows]
        figure.add_trace(
            go.Scatter(
                x=[row["layers"] for row in rows],
                y=means,
                error_y={
                    "type": "data",
                    "array": [row["max"] - row["mean"] for row in rows],
                    "arrayminus": [row["mean"] - row["min"] for row in rows],
                },
                name=_plain(f"{name} ({summary['scale']})"),
            )
        )
    figure.add_hline(_PLATEAU, line_dash="dot", annotation_text="0.7: nothing learned")
    figure.update_xaxes(title="layers")
    figure.update_yaxes(title="final validation MSE", rangemode="tozero")
    figure.update_layout(template="plotly_white")
    return figure


def partial_loss_figure(summary: dict[str, Any]) -> go.Figure:
    """Figure 4, right: the partial losses by depth, one line per place of the chain."""
    rows = summary["depths"]
    figure = go.Figure()
    for place, name in enumerate(summary["asked"]):
        losses = [row["partial_losses"][place] for row in rows]
        figure.add_trace(go.Scatter(x=[row["layers"] for row in rows], y=losses, name=_plain(name)))
    figure.update_xaxes(title="layers")
    figure.update_yaxes(title="final partial MSE, mean of the runs", rangemode="tozero")
    figure.update_layout(
        template="plotly_white", title=_plain(f"{summary['grid']}, {summary['scale']}")
    )
    return figure


def _plain(text: str) -> str:
    """Plotly takes tags in its texts for markup."""
    return escape(text, quote=False)


def trained_circuit_figure(trained: Trained) -> go.Figure:
    """Figure 5: a transformer's circuit, arrows as wide as they are necessary."""
    layers, task = trained.checkpoint.config.layers, trained.checkpoint.task
    return circuit_figure(trained.circuit, layers, necessity=trained.worth.ablated, task=task)


def figures(evidence: Evidence) -> Iterator[tuple[str, go.Figure]]:
    """Name and figure of all that there are numbers for."""
    grids = {name: evidence.grid(name) for name in ("section7-ic", "section7-nonic")}
    known = {name: summary for name, summary in grids.items() if summary is not None}
    if known:
        yield "figure-4-left", final_loss_figure(known)
    if "section7-ic" in known:
        yield "figure-4-right", partial_loss_figure(known["section7-ic"])
    for name in _TRANSFORMERS:
        trained = evidence.trained(name)
        if trained is not None:
            yield f"figure-5-{name}", trained_circuit_figure(trained)
        found = evidence.series(name)
        if found is not None:
            series = found[0]
            yield f"figure-6-{name}", loss_figure(series)
            yield f"figure-7-{name}", crossing_figure(series)
            yield f"appendix-D-{name}", attention_figure(series)


def write_figures(evidence: Evidence, folder: Path) -> list[Path]:
    """Write every figure as a page that needs no network and as Plotly's JSON.

    Args:
        evidence: where the numbers come from.
        folder: made if it does not exist.

    Returns:
        The files, with a circuitsvis page per transformer (appendix C).

    Raises:
        InputError: a file cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, figure in figures(evidence):
        write_whole(folder / f"{name}.html", figure.to_html(include_plotlyjs=True))
        write_whole(folder / f"{name}.json", figure.to_json())
        written += [folder / f"{name}.html", folder / f"{name}.json"]
    for name in _TRANSFORMERS:
        trained = evidence.trained(name)
        if trained is not None:
            task, model = trained.checkpoint.task, trained.checkpoint.model
            view = attention_view(model, task, task.sample(4, split="test"), range(4))
            written.append(view.save_html(folder / f"appendix-C-{name}.html"))
    return written
