"""Heads that only hand on: a fixed pattern may be needed, and is then named."""

import pytest
import torch

import retrieval_interp as ri
from retrieval_interp.circuits.circuit import Head, HeadPath, RolePath
from retrieval_interp.circuits.mechanisms import IDENTITY
from tests.built_by_hand import LastMark, hands_on

TASK = LastMark()
COPIES = HeadPath(Head(1, 0), RolePath(0, 1))


@pytest.fixture(scope="module")
def scored():
    model, batch = hands_on(), TASK.sample(64, split="test")
    circuit = ri.discover(model, TASK, examples=32)
    return model, batch, ri.score_circuit(model, TASK, circuit, batch, controls=0)


def loss_by_hooks(model, batch, emptied):
    """The circuit of the model by plain hooks: identity and uniform, then END to the answer."""
    size, examples = batch.inputs.shape[1], torch.arange(len(batch))
    uniform = torch.ones(size, size).tril() / torch.arange(1, size + 1)[:, None]

    def below(pattern, hook):
        pattern[:, 0], pattern[:, 1] = torch.eye(size), uniform
        for head in emptied:
            pattern[:, head] = 0

    def above(pattern, hook):
        pattern[:, 0], pattern[:, 1] = 0, uniform
        pattern[examples, 0, batch.roles[:, 0, 0], batch.roles[:, 0, 1]] = 1

    hooks = [(f"blocks.{at}.attn.hook_pattern", hook) for at, hook in enumerate((below, above))]
    with torch.no_grad():
        return float(
            TASK.example_losses(model.run_with_hooks(batch.inputs, fwd_hooks=hooks), batch).mean()
        )


def test_what_only_hands_on_is_needed_as_such(scored):
    model, batch, score = scored
    assert score.circuit[0, 0] == IDENTITY and list(score.circuit.paths()) == [COPIES]
    passes, marks = HeadPath(Head(0, 0), RolePath(1, 1)), HeadPath(Head(0, 1), RolePath(1, 2))
    assert score.circuit.enabling == (passes, marks)  # the intact model needs both
    assert score.combined_loss == pytest.approx(loss_by_hooks(model, batch, ()), abs=1e-6)
    losses = {row.head: row.emptied.loss for row in score.heads}
    for head in (0, 1):
        assert losses[0, head] == pytest.approx(loss_by_hooks(model, batch, (head,)), abs=1e-6)
    assert losses[0, 0] > 1.3 > score.limit > losses[0, 1]
    assert score.rest_emptied_loss == pytest.approx(losses[0, 1], abs=1e-6)
    (row,) = score.needed_as_such
    (copied,) = row.enables
    assert row.head == (0, 0) and (copied.path, copied.side) == (COPIES, "value")
    assert copied.attention == copied.when_cut > 0.95 and copied.by_value == pytest.approx(0.0)
