"""Draw a checkpoint's circuit as a picture: python examples/draw_circuit.py [CKPT] [OUT.svg]"""

import sys
from pathlib import Path

import retrieval_interp as ri

name, out = [*sys.argv[1:], *["small", "circuit.svg"][len(sys.argv) - 1 :]]
checkpoint = ri.load_checkpoint(name)
model, task = checkpoint.model, checkpoint.task
batch = task.sample(512, split="test")
score = ri.score_circuit(model, task, ri.discover(model, task), batch)
losses = {row.path: row.removed_loss for row in score.paths}
svg = ri.draw_circuit(
    score.circuit,
    checkpoint.config.layers,
    task=task,
    batch=batch,
    enables=score.enables,
    arrows=ri.worth_of_paths(losses, score.intact_loss, score.uninformed_loss, task.loss_name),
)
Path(out).write_text(svg + "\n")
