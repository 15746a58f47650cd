"""The paper's figures from our own numbers, as Plotly HTML and JSON.

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
from retrieval_interp.reproduce.paper import UNLEARNED
from retrieval_interp.storage.files import write_whole
from retrieval_interp.views.attention import attention_view

_TRANSFORMERS = ("transformer-a", "transformer-b", "transformer-c", "transformer-d", "small")


def final_loss_figure(grids: dict[str, dict[str, Any]]) -> go.Figure:
    """Figure 4, left: the final validation loss by depth, mean and range over the seeds.

    Args:
        grids: summaries of grids by name.
    """
    figure = _loss_by_depth("final validation MSE")
    for name, summary in grids.items():
        rows = summary["depths"]
        error = {
            "type": "data",
            "array": [row["max"] - row["mean"] for row in rows],
            "arrayminus": [row["mean"] - row["min"] for row in rows],
        }
        figure.add_scatter(
            x=[row["layers"] for row in rows],
            y=[row["mean"] for row in rows],
            error_y=error,
            name=_plain(f"{name} ({summary['scale']})"),
        )
    return figure.add_hline(UNLEARNED, line_dash="dot", annotation_text="0.7: nothing learned")


def partial_loss_figure(summary: dict[str, Any]) -> go.Figure:
    """Figure 4, right: the partial losses by depth, one line per place in the chain."""
    rows = summary["depths"]
    figure = _loss_by_depth("final partial MSE, mean of the runs")
    for place, name in enumerate(summary["asked"]):
        losses = [row["partial_losses"][place] for row in rows]
        figure.add_scatter(x=[row["layers"] for row in rows], y=losses, name=_plain(name))
    return figure.update_layout(title=_plain(f"{summary['grid']}, {summary['scale']}"))


def _loss_by_depth(loss: str) -> go.Figure:
    figure = go.Figure(layout={"template": "plotly_white"})
    figure.update_xaxes(title="layers")
    return figure.update_yaxes(title=loss, rangemode="tozero")


def _plain(text: str) -> str:
    """Plotly reads tags in its texts as markup."""
    return escape(text, quote=False)


def figures(evidence: Evidence) -> Iterator[tuple[str, go.Figure | str]]:
    """Name and figure, circuits as SVG, for all that there are numbers for."""
    grids = {name: evidence.grid(name) for name in ("section7-ic", "section7-nonic")}
    known = {name: summary for name, summary in grids.items() if summary is not None}
    if known:
        yield "figure-4-left", final_loss_figure(known)
    if "section7-ic" in known:
        yield "figure-4-right", partial_loss_figure(known["section7-ic"])
    for name in _TRANSFORMERS:
        trained = evidence.trained(name)
        if trained is not None:
            yield (
                f"figure-5-{name}",
                draw_circuit(
                    trained.circuit,
                    trained.checkpoint.config.layers,
                    losses=trained.worth.ablated,
                    intact=trained.worth.combined_loss,
                    uninformed=trained.checkpoint.task.plateau or 1.0,
                    task=trained.checkpoint.task,
                ),
            )
        found = evidence.series(name)
        if found is not None:
            series = found[0]
            yield f"figure-6-{name}", loss_figure(series)
            yield f"figure-7-{name}", crossing_figure(series)
            yield f"appendix-D-{name}", attention_figure(series)


def write_figures(evidence: Evidence, folder: Path) -> list[Path]:
    """Write every figure: circuits as SVG, others as a page that works offline and Plotly's JSON.

    Args:
        evidence: where the numbers come from.
        folder: created if missing.

    Returns:
        The files, including one circuitsvis page per transformer (appendix C).

    Raises:
        InputError: a file cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, figure in figures(evidence):
        texts = (
            {"svg": figure}
            if isinstance(figure, str)
            else {"html": figure.to_html(include_plotlyjs=True), "json": figure.to_json()}
        )
        for kind, text in texts.items():
            written.append(folder / f"{name}.{kind}")
            write_whole(written[-1], text)
    for name in _TRANSFORMERS:
        trained = evidence.trained(name)
        if trained is not None:
            task, model = trained.checkpoint.task, trained.checkpoint.model
            view = attention_view(model, task, task.sample(4, split="test"), range(4))
            written.append(view.save_html(folder / f"appendix-C-{name}.html"))
    return written
