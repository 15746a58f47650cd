"""Train a transformer: `python -m retrieval_interp.train --preset small`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from retrieval_interp.commands.command import say, saying


def main(argv: Sequence[str], prog: str = "retrieval-interp train") -> None:
    with saying("loading PyTorch"):
        from retrieval_interp.commands.train_options import train_options

    options = train_options(argv, prog)

    with saying("loading TransformerLens"):
        import torch
        from tqdm.auto import tqdm

        from retrieval_interp.emergence.watch import Watch
        from retrieval_interp.storage.circuit_file import read_circuit
        from retrieval_interp.storage.run_folder import last_step
        from retrieval_interp.training.freed_memory import keep_freed_memory
        from retrieval_interp.training.loop import FINAL_STEPS, train_model

    out, recipe, watch = options.out or Path("runs") / options.preset, options.recipe, None
    keep_freed_memory()
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    if options.watch is not None:
        layers, heads = recipe.model.layers, recipe.model.heads
        watch = Watch(
            read_circuit(options.watch, recipe.task, layers, heads, "this run is trained on")
        )
    start = done = last_step(out)
    waiting = "compiling the model" if options.compile else "first step"
    bar = tqdm(desc=waiting, total=recipe.steps, unit="step", disable=None, dynamic_ncols=True)

    def show(step: int, row: dict[str, Any] | None) -> None:
        nonlocal done
        if done == start:
            bar.set_description_str("", False)
            onwards = f", going on from step {step - 1}" if step > 1 else ""
            with tqdm.external_write_mode():
                say(f"{out}: {recipe.steps} steps of {recipe.batch} examples{onwards}")
        done = step
        bar.update(done - bar.n)
        if row:
            partial = " ".join(f"{loss:.3f}" for loss in row["partial_losses"])
            bar.set_postfix_str(
                f"loss {row['validation_loss']:.4f} ({recipe.task.asked[0]}.. {partial})", False
            )

    try:
        trained = train_model(recipe, out, options.device, options.compile, show, watch)
    except KeyboardInterrupt:
        kept = last_step(out)
        first = f"starts over (the first checkpoint is at step {recipe.checkpoint_every})"
        onwards = f"goes on from step {kept}" if kept else first
        raise KeyboardInterrupt(f"interrupted at step {done}; the same command {onwards}") from None
    finally:
        bar.close()
    record = trained.record
    if "validation_loss" not in record:
        say(f"{out}: {record['step']} steps; its metrics.jsonl has no losses of the last steps")
        return
    partial = " ".join(
        f"{name} {loss:.4f}" for name, loss in zip(recipe.task.asked, record["partial_losses"])
    )
    say(
        f"{out}: {record['step']} steps in {record['seconds'] / 60:.1f} min, validation "
        f"{recipe.task.loss_name} {record['validation_loss']:.4f} (mean of the last {FINAL_STEPS} "
        f"steps; {partial})"
    )
    say(f"look inside: python -m retrieval_interp.ablate --ckpt {out}")
    if watch is not None:
        say(f"when its paths came: python -m retrieval_interp emergence --run {out}")
