"""The paper's claims and our numbers: `python -m retrieval_interp reproduce`."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from retrieval_interp.commands.command import status, tell_files
from retrieval_interp.commands.options import OUTPUT, check_outputs, parse_options
from retrieval_interp.progress import progress_bar
from retrieval_interp.tasks.messages import InputError


@dataclass(frozen=True)
class ReproduceOptions:
    """Print the paper's claims and our numbers, with their scale and command.

    Attributes:
        only: claims to check, such as C6 C7.
        json: write the numbers to this file.
        runs: folder of finished runs, searched after the package's own results.
    """

    only: tuple[str, ...] = ("all",)
    json: Path | None = field(default=None, metadata=OUTPUT)
    runs: Path = Path("runs")


def main(argv: Sequence[str], prog: str = "retrieval-interp reproduce") -> None:
    options = parse_options(ReproduceOptions, argv, prog)
    check_outputs(options)
    if options.runs != Path("runs") and not options.runs.is_dir():
        raise InputError(f"--runs: expected a folder of runs, found no folder {options.runs}")

    with status("loading PyTorch"):
        from retrieval_interp.reproduce.claims import CLAIMS, judge, table_data, table_text
        from retrieval_interp.reproduce.evidence import Evidence
        from retrieval_interp.storage.files import write_json
        from retrieval_interp.views.tables import terminal_width

    only = list(CLAIMS) if options.only == ("all",) else options.only
    if unknown := [name for name in only if name not in CLAIMS]:
        raise InputError(f"--only: expected some of {', '.join(CLAIMS)}, found {unknown[0]!r:.40}")
    judged = judge(Evidence(options.runs, progress_bar), only)
    if options.json is not None:
        write_json(options.json, table_data(judged))
    print(table_text(judged, terminal_width()))
    tell_files(rows=options.json)
