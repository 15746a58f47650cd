"""Figure 2 from Inspect's logs: `python -m retrieval_interp llm plot logs --out figure.html`.

Inspect itself asks the questions: `inspect eval retrieval_interp/equations --model ...`.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from retrieval_interp.commands.command import check_outputs, parse_options, saying
from retrieval_interp.tasks.errors import InputError


@dataclass(frozen=True)
class LlmOptions:
    """Show how well language models solve the problem in words (paper, figure 2).

    Attributes:
        command: plot prints a table and draws figure 2.
        logs: Inspect's log files, or folders of them.
        out: write the figure as an HTML page that works offline to this file.
        json: write the numbers to this file.
    """

    command: Positional[Literal["plot"]]
    logs: Annotated[Positional[tuple[Path, ...]], arg(metavar="LOG ...")]
    out: Annotated[Path | None, arg(aliases=["--html"], metavar="FILE")] = None
    json: Annotated[Path | None, arg(metavar="FILE")] = None


def main(argv: Sequence[str], prog: str = "retrieval-interp llm") -> None:
    options = parse_options(LlmOptions, argv, prog)
    if not options.logs:
        raise InputError("expected logs of inspect eval, found none; name files or their folder")
    check_outputs({"--out": options.out, "--json": options.json}, options.logs)
    with saying("loading Inspect"):
        try:
            import inspect_ai  # noqa: F401
        except ImportError:
            raise InputError(
                "expected Inspect to be installed; pip install 'retrieval-interp[llm]'"
            ) from None
        from retrieval_interp.llm.results import accuracy_figure, read_results, results_table
        from retrieval_interp.storage.files import write_json, write_whole
        from retrieval_interp.views.tables import terminal_width

    results = read_results(options.logs)
    print(results_table(results, terminal_width()))
    if options.json is not None:
        write_json(options.json, [asdict(row) for row in results])
        print(f"\nnumbers: {options.json}")
    if options.out is not None:
        page = accuracy_figure(results).to_html(include_plotlyjs=True, div_id="accuracy")
        write_whole(options.out, page)
        print(f"\nfigure: {options.out}")
