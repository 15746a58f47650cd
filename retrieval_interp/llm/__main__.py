"""Figure 2 from the logs of Inspect: `python -m retrieval_interp.llm plot logs --out figure.html`.

The questions are asked by Inspect itself: `inspect eval retrieval_interp/equations --model ...`.
"""

if __name__ == "__main__":  # before anything that takes time to load
    from retrieval_interp.cli.interrupts import end_at_once

    end_at_once("llm")

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tyro.conf import Positional

from retrieval_interp.cli.command import check_outputs, parse_options, run_command
from tasks.errors import InputError

PROG = "python -m retrieval_interp.llm"


@dataclass(frozen=True)
class LlmOptions:
    """Say how well language models solve the retrieval problem in words (paper, figure 2).

    Attributes:
        command: plot prints a table and draws figure 2.
        logs: Inspect's log files, or folders of them.
        out: write the figure as a page that needs no network to this file.
        json: write the table's numbers to this file.
    """

    command: Positional[Literal["plot"]]
    logs: Positional[tuple[Path, ...]]
    out: Path | None = None
    json: Path | None = None


def main(argv: Sequence[str]) -> None:
    options = parse_options(LlmOptions, argv, PROG)
    if not options.logs:
        raise InputError("expected logs of inspect eval, found none; name files or their folder")
    check_outputs({"--out": options.out, "--json": options.json}, options.logs)
    try:
        import inspect_ai  # noqa: F401
    except ImportError:
        raise InputError(
            "expected Inspect to be installed, found it is not; pip install 'retrieval-interp[llm]'"
        ) from None

    from retrieval_interp.llm.results import read_results, results_table
    from retrieval_interp.storage.files import write_whole

    results = read_results(options.logs)
    print(results_table(results))
    if options.json is not None:
        import json
        from dataclasses import asdict

        write_whole(options.json, json.dumps([asdict(row) for row in results], indent=2) + "\n")
        print(f"\nnumbers: {options.json}")
    if options.out is not None:
        from retrieval_interp.llm.plot import accuracy_figure

        figure = accuracy_figure(results)
        write_whole(options.out, figure.to_html(include_plotlyjs=True, div_id="accuracy"))
        print(f"\nfigure: {options.out}")


if __name__ == "__main__":
    run_command(main, PROG)
