"""An atlas as a table of heads by tasks, coloured in a page, and how alike the tasks are."""

from retrieval_interp.circuits.counterfactual.atlas import Atlas, Lost
from retrieval_interp.circuits.paths import Head
from retrieval_interp.views.page import View, render
from retrieval_interp.views.tables import terminal_width, text_table

LEGEND = (
    "Percent of what each task loses without all heads, lost without one of them (negative: it "
    "works against the answer). a: by where it looks, v: by what it brings."
)
LIKENESS = (
    "Mean Jaccard index, in percent, of the heads that matter, between halves of the examples; "
    "of a task with itself that of its two halves."
)


def atlas_text(atlas: Atlas) -> str:
    """Write both tables in lines of the terminal's width."""
    names, width = list(atlas.lost), terminal_width()
    right = range(1, 1 + len(names))
    rows = [[str(head), *(cell_text(atlas.lost[n][head]) for n in names)] for head in order(atlas)]
    alike = [[name, *(f"{100 * atlas.likeness(name, n):.0f}" for n in names)] for name in names]
    tables = [
        *text_table(["head", *names], rows, right, width),
        "",
        *text_table(["alike", *names], alike, right, width),
    ]
    return "\n".join([LEGEND, "", *tables, "", LIKENESS])


def order(atlas: Atlas) -> list[Head]:
    """Return the heads that serve a task, those that serve most first."""
    served = {head: atlas.served(head) for head in atlas.heads}

    def worth(head: Head) -> tuple[int, float]:
        return -len(served[head]), -sum(atlas.lost[task][head].output.share for task in atlas.lost)

    return sorted((head for head in atlas.heads if served[head]), key=worth)


def cell_text(lost: Lost) -> str:
    """Write `69 v`; the letters name each part that loses half as much by itself."""
    share, parts = lost.output.share, {"a": lost.attention, "v": lost.values}
    half = abs(share) / 2
    by = [k for k, part in parts.items() if part is not None and abs(part.share) >= half > 0]
    return f"{round(100 * share)} {''.join(by)}".rstrip()


def atlas_view(atlas: Atlas) -> View:
    """Show an atlas as a page or in a notebook."""
    names = list(atlas.lost)
    of_heads, of_tasks = [], []
    for head in order(atlas):
        cells = [atlas.lost[name][head] for name in names]
        of_heads.append((head, [(cell_text(lost), lost.output.share, None) for lost in cells]))
    for name in names:
        shares = [atlas.likeness(name, task) for task in names]
        of_tasks.append((name, [(f"{100 * share:.0f}", share, None) for share in shares]))
    html = render(
        "atlas.html",
        names=names,
        of_heads=of_heads,
        of_tasks=of_tasks,
        legend=LEGEND,
        likeness=LIKENESS,
    )
    return View("Which heads serve which answers", html, atlas_text(atlas), atlas)
