"""Runs with hooks that are set by hand, one a head, and their losses."""

import torch

from retrieval_interp.circuits.paths import Mask, Positions

# Sequence order of the roles when D = 2: a source may not come after its destination.
ORDER = {3: 0, 4: 1, 1: 2, 2: 3, 0: 4}
PATHS = [(dest, src) for dest in range(5) for src in range(5) if ORDER[src] <= ORDER[dest]]


def hooks_left(model):
    points = model.hook_dict.values()
    return sum(len(point.fwd_hooks) + len(point._forward_hooks) for point in points)


def naive_outputs(model, circuit, batch):
    """One plain hook a head, set by hand."""
    hooks, mask = [], Mask(causal=model.cfg.attention_dir == "causal")
    for (layer, head), mechanism in circuit.mechanisms.items():

        def replace(old, hook, head=head, mechanism=mechanism):
            new = old.clone()
            if mechanism.kind == "cut":
                for example in range(len(batch)):
                    for chain in batch.roles[example].tolist():
                        for path in mechanism.paths:
                            new[example, head, chain[path.dest], chain[path.src]] = 0
            elif mechanism.keeps_own:
                new[:, head] = mechanism.changed(old[:, head], batch.roles)
            else:
                new[:, head] = mechanism.pattern(Positions.of(batch, mask))
            return new

        hooks.append((f"blocks.{layer}.attn.hook_pattern", replace))
    with torch.no_grad():
        return model.run_with_hooks(batch.inputs, fwd_hooks=hooks)


def naive_losses(model, task, circuit, batch):
    """The loss of every example, of all that is asked."""
    return task.example_losses(naive_outputs(model, circuit, batch), batch).mean(1)


def naive_loss(model, task, circuit, batch):
    return float(naive_losses(model, task, circuit, batch).mean())
