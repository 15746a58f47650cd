"""The paper's claims and our numbers: `python -m retrieval_interp reproduce`.

What takes seconds is recomputed from shipped checkpoints; the rest is read from result files that
say how they were made.
"""

import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from retrieval_interp.commands.command import (
    check_outputs,
    parse_options,
    saying,
    tell_files,
)
from retrieval_interp.progress import progress_bar
from retrieval_interp.tasks.errors import InputError


@dataclass(frozen=True)
class ReproduceOptions:
    """Print the paper's claims and our numbers, with their scale and command.

    Attributes:
        only: claims to check, such as C6 C7; default all.
        json: write the numbers to this file.
        markdown: write the rows as a Markdown table to this file.
        figures: write the figures that there are numbers for to this folder: curves as HTML and
            JSON, circuits as SVG.
        runs: folder of finished runs, searched after the package's own results.
        run: run what is missing, into the folder of runs (hours to days).
    """

    only: tuple[str, ...] = ()
    json: Path | None = None
    markdown: Path | None = None
    figures: Path | None = None
    runs: Path = Path("runs")
    run: bool = False


def main(argv: Sequence[str], prog: str = "retrieval-interp reproduce") -> None:
    options = parse_options(ReproduceOptions, argv, prog)
    check_outputs({"--json": options.json, "--markdown": options.markdown}, [])
    if options.figures is not None and options.figures.is_file():
        raise InputError(f"{options.figures}: expected a folder for the figures, found a file")

    with saying("loading PyTorch"):
        from retrieval_interp.reproduce.claims import CLAIMS, judge
        from retrieval_interp.reproduce.evidence import Evidence
        from retrieval_interp.reproduce.gallery import write_figures
        from retrieval_interp.reproduce.table import table_json, table_markdown, table_text
        from retrieval_interp.storage.files import write_whole
        from retrieval_interp.views.tables import terminal_width

    if unknown := [name for name in options.only if name not in CLAIMS]:
        raise InputError(f"--only: expected some of {', '.join(CLAIMS)}, found {unknown[0]!r:.40}")
    evidence = Evidence(options.runs, progress_bar)
    rows = judge(evidence, options.only)
    if options.run:
        for command in dict.fromkeys(row.command for row in rows if row.verdict == "not run"):
            _run(command)
        evidence = Evidence(options.runs, progress_bar)
        rows = judge(evidence, options.only)
    for path, text in ((options.json, table_json), (options.markdown, table_markdown)):
        if path is not None:
            write_whole(path, text(rows))
    print(table_text(rows, terminal_width()))
    tell_files(rows=options.json, table=options.markdown)
    if options.figures is not None:
        for path in write_figures(evidence, options.figures):
            print(f"figure:  {path}")


def _run(command: str) -> None:
    print(f"running: {command}", flush=True)
    done = subprocess.run([sys.executable, *shlex.split(command)[1:]], check=False)
    if done.returncode:
        raise InputError(
            f"expected the command to finish, found status {done.returncode}: {command}; the "
            "same command goes on where it stopped"
        )
