"""What is fuzzed: every reader of a file or text from outside, with what makes its inputs.

A target makes an input (`inputs`), lays it out (`prepare`, which may write the file that is read),
and reads it (`read`). What was read is also used as the commands do: what a reader lets through has
to print.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from faults.fuzz_checkpoints import checkpoints, use_checkpoint
from faults.fuzz_files import (
    RECORD,
    circuit_data,
    log_data,
    metrics_data,
    result_data,
    use_bare_circuit,
    use_circuit,
    use_grid,
    use_log,
    use_metrics,
    use_recipe,
    use_result,
    use_series,
    use_watch,
    watch_data,
)
from faults.fuzz_inputs import damaged_data, damaged_json, damaged_lines, dumps, texts
from faults.fuzz_run import run
from faults.fuzz_texts import (
    construct,
    constructions,
    graphs,
    lines,
    parse_each,
    task_data,
    use_graph,
    use_lines,
    use_parameters,
)
from retrieval_interp.reproduce.evidence import _read as read_record
from retrieval_interp.storage.run_folder import checkpoint_files
from retrieval_interp.sweep.grid import make_grid
from tasks.structured import to_data


@dataclass(frozen=True)
class Target:
    """One reader.

    Attributes:
        name: in the table and in file names.
        inputs: what it is given.
        prepare: lays an input out in a folder and returns what `read` is given.
        read: reads and uses it.
        warm: makes what inputs are damaged copies of, which may take time and random numbers.
    """

    name: str
    inputs: SearchStrategy[Any]
    prepare: Callable[[Any, Path], Any]
    read: Callable[[Any], object]
    warm: Callable[[], object] = run


def _as_file(name: str, gives_folder: bool = False) -> Callable[[bytes, Path], Path]:
    def write(content: bytes, folder: Path) -> Path:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return folder if gives_folder else path

    return write


def _as_it_is(value: Any, folder: Path) -> Any:
    return value


def _file_names(names: list[str], folder: Path) -> Path:
    for old in folder.glob("checkpoints/*"):
        old.unlink()
    for name in names:
        kept = "".join(letter for letter in name if letter not in "/\0\ud800")[:60]
        path = folder / "checkpoints" / f"step-{kept}.safetensors"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return folder


def _json_target(name: str, file: str, originals: Any, read: Any, folder: bool = False) -> Target:
    return Target(name, damaged_json(originals), _as_file(file, folder), read, originals)


TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        Target("checkpoint", checkpoints(), _as_file("step-000020.safetensors"), use_checkpoint),
        _json_target("circuit", "circuit.json", circuit_data, use_circuit),
        _json_target("bare-circuit", "circuit.json", circuit_data, use_bare_circuit),
        _json_target(
            "config", "config.json", lambda: [to_data(run().recipe)], use_recipe, folder=True
        ),
        Target(
            "metrics", damaged_lines(metrics_data), _as_file("metrics.jsonl", True), use_metrics
        ),
        Target("watch", damaged_lines(watch_data), _as_file("watch.jsonl"), use_watch),
        _json_target("series", "series.json", lambda: [run().to_dict()], use_series),
        _json_target(
            "sweep-result",
            f"results/{make_grid('section7-ic', 'smoke').cells[0].name}.json",
            result_data,
            use_result,
            folder=True,
        ),
        _json_target(
            "sweep-grid",
            "grid.json",
            lambda: [make_grid("section7-ic", "smoke").to_dict()],
            use_grid,
            folder=True,
        ),
        _json_target(
            "result-record",
            "summary.json",
            lambda: [{**RECORD, "record": dict(RECORD)}],
            lambda path: (read_record(path), read_record(path, "record")),
        ),
        Target("task-data", damaged_data(task_data).map(dumps), _as_it_is, use_parameters),
        Target("constructors", constructions(), _as_it_is, construct),
        Target("graph", graphs(), _as_it_is, use_graph),
        Target("circuit-lines", st.lists(lines, max_size=4), _as_it_is, use_lines),
        Target("paths", st.lists(lines, min_size=1, max_size=4), _as_it_is, parse_each),
        Target("file-names", st.lists(texts, max_size=4), _file_names, checkpoint_files),
        _json_target("inspect-log", "log.json", log_data, use_log),
    )
}  # fmt: skip
