"""Which attention paths do the work: `python -m retrieval_interp.ablate --ckpt small`.

Finds a circuit (or takes one), replaces the attention of a trained model by it, and says what each
replacement costs (paper, appendix E).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retrieval_interp.commands import parse_options, progress_bar, run_command
from tasks.errors import InputError

if TYPE_CHECKING:
    from circuits import Circuit, CircuitScore
    from retrieval_interp.checkpoint import Checkpoint

PROG = "python -m retrieval_interp.ablate"
PAPER_COMBINED = "below 0.05"
PAPER_PATHS = "0.17 to 0.89 a path, 0.05 to 0.1 in the first useful layer"


@dataclass(frozen=True)
class AblateOptions:
    """Find which attention paths of a trained transformer do the work.

    Attributes:
        ckpt: a shipped name (small), a checkpoint file, or a run folder (its last checkpoint).
        circuit: score this circuit instead of finding one.
        json: write the numbers to this file.
        report: write an HTML page that needs no network to this file.
        save_circuit: write the circuit to this file, to be edited or given to --circuit.
        examples: how many examples to measure on (and as many others to find the circuit on).
        seed: which examples.
        tolerance: the mean squared error that a working circuit stays below.
        device: auto, cpu or cuda.
    """

    ckpt: str = "small"
    circuit: Path | None = None
    json: Path | None = None
    report: Path | None = None
    save_circuit: Path | None = None
    examples: int = 512
    seed: int = 0
    tolerance: float = 0.05
    device: str = "auto"


def main(argv: Sequence[str]) -> None:
    options = parse_options(AblateOptions, argv, PROG)
    _check_options(options)

    from circuits import discover, score_circuit
    from retrieval_interp.checkpoint import load_checkpoint
    from retrieval_interp.files import write_whole
    from retrieval_interp.train import choose_device

    device = choose_device(options.device)
    checkpoint = load_checkpoint(options.ckpt, device)
    model, task = checkpoint.model, checkpoint.task
    if options.circuit is not None:
        circuit = read_circuit(options.circuit, checkpoint)
    else:
        circuit = discover(
            model, task, options.tolerance, options.examples, options.seed, progress_bar
        )
    batch = task.sample(options.examples, options.seed, device, split="test")
    score = score_circuit(model, task, circuit, batch, options.tolerance, progress_bar)
    print(format_score(score, checkpoint, options))
    if options.json is not None:
        import json

        data = score_to_dict(score, checkpoint, options.seed)
        write_whole(options.json, json.dumps(data, indent=2) + "\n")
        print(f"numbers: {options.json}")
    if options.save_circuit is not None:
        write_whole(options.save_circuit, circuit.to_json())
        print(f"circuit: {options.save_circuit}")
    if options.report is not None:
        from retrieval_interp.report import render_report

        command = " ".join([PROG, *argv])
        page = render_report(score, checkpoint, options.seed, command)
        write_whole(options.report, page)
        print(f"report:  {options.report}")


def _check_options(options: AblateOptions) -> None:
    import math

    from retrieval_interp.files import check_writable

    if not 1 <= options.examples <= 1_000_000:
        raise InputError(f"--examples: expected 1 to 1000000, found {options.examples}")
    if not (0 < options.tolerance < math.inf):
        raise InputError(f"--tolerance: expected a number above 0, found {options.tolerance}")
    if not 0 <= options.seed < 2**63:
        raise InputError(f"--seed: expected 0 to 2^63 - 1, found {options.seed}")
    outputs = [options.json, options.report, options.save_circuit]
    for path in outputs:
        check_writable(path)
    given = [path.resolve() for path in outputs if path is not None]
    if len(set(given)) < len(given):
        raise InputError("expected a different file for --json, --report and --save-circuit")


def read_circuit(path: Path, checkpoint: "Checkpoint") -> "Circuit":
    """Read a circuit file for a checkpoint.

    Raises:
        InputError: not a circuit, of a task with other steps, or naming what the model lacks.
    """
    from circuits import Circuit
    from circuits.mechanisms import check_paths
    from retrieval_interp.files import read_text

    task, config = checkpoint.task, checkpoint.config
    try:
        circuit = Circuit.from_json(read_text(path, "a circuit"), len(task.role_names))
        circuit.check_fits(config.layers, config.heads)
        for head, mechanism in circuit.mechanisms.items():
            check_paths(mechanism.paths, task.sample(1).roles, causal=True, where=f"{head}: ")
    except InputError as error:
        text = str(error)
        raise InputError(text if text.startswith(str(path)) else f"{path}: {text}") from None
    steps = circuit.task.get("steps", task.steps)
    if steps != task.steps:
        raise InputError(
            f"{path}: expected a circuit for chains of {task.steps} steps, as {checkpoint.name} "
            f"was trained on, found one for {steps!r:.20}"
        )
    return circuit


def score_to_dict(score: "CircuitScore", checkpoint: "Checkpoint", seed: int) -> dict[str, Any]:
    """The numbers as JSON data."""
    from tasks import role_name

    return {
        "checkpoint": checkpoint.name,
        "task": checkpoint.task.to_dict(),
        "examples": score.examples,
        "seed": seed,
        "tolerance": score.tolerance,
        "baseline_mse": score.baseline_mse,
        "heads": [
            {
                "layer": row.head.layer,
                "head": row.head.head,
                "mechanism": row.mechanism.kind,
                "paths": [[role_name(dest), role_name(src)] for dest, src in row.mechanism.paths],
                "mse": row.mse,
            }
            for row in score.heads
        ],
        "combined_mse": score.combined_mse,
        "paths": [
            {
                "layer": row.path.head.layer,
                "head": row.path.head.head,
                "dest": role_name(row.path.path.dest),
                "src": role_name(row.path.path.src),
                "ablated_mse": row.ablated_mse,
            }
            for row in score.paths
        ],
        "sufficient": score.sufficient,
        "minimal": score.minimal,
        "rest": score.circuit.rest,
    }


def describe_task(checkpoint: "Checkpoint") -> str:
    """The task and the model in one line."""
    task, config = checkpoint.task, checkpoint.config
    return (
        f"retrieval with {task.chains} chains of {task.steps} steps in {task.dim} dimensions, "
        f"{'with' if task.curriculum else 'without'} implicit curriculum; {config.layers} layers "
        f"of {config.heads} head{'s' if config.heads > 1 else ''}, d_model {config.d_model}"
    )


def verdict(score: "CircuitScore", plateau: float) -> str:
    """What the numbers say, in a sentence or two."""
    kinds = sorted({row.mechanism.kind for row in score.heads if row.mechanism.paths})
    useful = sum(bool(row.mechanism.paths) for row in score.heads)
    if not score.circuit.mechanisms:
        reason = (
            f"the model itself is near its plateau of {plateau:.2f} and has not learned the task"
            if score.baseline_mse > 0.8 * plateau
            else "no replacement of its heads was found or given"
        )
        return f"No circuit: {reason} (baseline MSE {score.baseline_mse:.4f})."
    text = (
        f"{'Sufficient' if score.sufficient else 'Not sufficient'}: with "
        f"{len(score.circuit.mechanisms)} of {len(score.heads)} heads replaced, {useful} of them "
        f"by {' and '.join(kinds) or 'no'} paths, the MSE is {score.combined_mse:.4f}, "
        f"{'below' if score.sufficient else 'not below'} {score.tolerance:g} (intact: "
        f"{score.baseline_mse:.4f}; paper: {PAPER_COMBINED})."
    )
    if score.paths:
        costs = [row.ablated_mse for row in score.paths]
        spared = [str(row.path) for row in score.paths if row.ablated_mse <= score.tolerance]
        text += (
            f" {'Minimal' if score.minimal else 'Not minimal'}: each of the {len(costs)} paths, "
            f"ablated too, gives {min(costs):.2f} to {max(costs):.2f} (paper: {PAPER_PATHS})"
        )
        text += f"; {', '.join(spared)} can go." if spared else "."
    return text


def format_score(score: "CircuitScore", checkpoint: "Checkpoint", options: AblateOptions) -> str:
    """The table that the command prints."""
    from tasks import path_letters

    how = (
        "read from " + str(options.circuit)
        if options.circuit
        else (f"found on {score.examples} examples")
    )
    lines = [
        f"{checkpoint.name}: {describe_task(checkpoint)}",
        f"circuit {how}; every MSE is measured on {score.examples} "
        f"{'examples' if options.circuit else 'others'}, seed {options.seed}",
        "",
        f"baseline MSE (nothing replaced)  {score.baseline_mse:.4f}",
        "",
    ]
    lines += _columns(
        ["head", "mechanism", "MSE, only this head replaced"],
        [[str(row.head), str(row.mechanism), f"{row.mse:.4f}"] for row in score.heads],
    )
    lines += [
        "",
        f"combined MSE (all of them replaced)  {score.combined_mse:.4f}",
        "",
    ]
    if score.paths:
        lines += _columns(
            ["path", "in letters", "MSE, ablated too"],
            [
                [str(row.path), path_letters(*row.path.path), f"{row.ablated_mse:.4f}"]
                for row in score.paths
            ],
        )
        lines.append("")
    lines.append(verdict(score, checkpoint.task.plateau))
    return "\n".join(lines)


def _columns(header: list[str], rows: list[list[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    table = [header, ["-" * width for width in widths], *rows]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in table
    ]


if __name__ == "__main__":
    run_command(main, PROG)
