"""Heads that only hand on: a fixed pattern may be needed, and is then named."""

import pytest
import torch

import retrieval_interp as ri
from retrieval_interp.circuits.circuit import Head, HeadPath, RolePath
from retrieval_interp.circuits.mechanisms import IDENTITY
from retrieval_interp.circuits.scores.enabling import Enabled, enabled_by
from retrieval_interp.circuits.tolerance import is_better
from retrieval_interp.views.score_text import finding
from tests.built_by_hand import LastMark, hands_on

TASK = LastMark()
COPIES = HeadPath(Head(1, 0), RolePath(0, 1))


@pytest.fixture(scope="module")
def scored():
    model, batch = hands_on(), TASK.sample(64, split="test")
    circuit = ri.discover(model, TASK, examples=64)
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


def test_it_is_counted(scored):
    work = "2 of 4 heads (L0.H0 by its identity pattern) and 1 attention path do the work"
    assert finding(scored[2]).startswith(work)


@pytest.mark.parametrize("name, needed", [("small", {"L1.H0"}), ("repeated", set())])
def test_shipped_circuits_have_such_heads(name, needed):
    lines = {
        "small": "L0.H0 shared s4<-s3 s4<-s4 s6<-s5, L1.H0 identity, L2.H0 one-hot s0<-s2 s4<-s6, "
        "L3.H0 identity, L4.H0 one-hot s0<-s4",
        "repeated": "L0.H0 uniform, L1.H0 one-hot s0<-s2",
    }
    trained = ri.load_checkpoint(name)
    circuit = ri.parse_circuit(lines[name].split(", "), trained.task)
    batch = trained.task.sample(128)
    score = ri.score_circuit(trained.model, trained.task, circuit, batch, controls=0)
    assert {str(row.head) for row in score.needed_as_such} == needed


def test_where_neither_side_loses_half_it_is_both():
    trained = ri.load_checkpoint("conditional")
    cut, later = (ri.parse_head_path(t, trained.task) for t in ("L0.H0 s4<-s4", "L4.H0 s0<-s4"))
    batch = trained.task.sample(64, split="test")
    (served,) = enabled_by(trained.model, batch, [cut], [later])[cut]
    assert served.side == "query and key" and served.text.startswith("query and key 0.99 to 0.5")
    query = Enabled(later, 0.99, 0.56, by_query=0.77, by_key=0.98, by_value=0.99)
    assert query.side == "query"


def test_better_is_better_by_enough_to_matter():
    assert not is_better(0.1, 1e-7, 0.1 + 1.5e-6, 2.3)  # significant, not relevant
    assert is_better(0.07, 0.01, 0.1, 2.3) and not is_better(0.07, 0.02, 0.1, 2.3)
    assert not is_better(1.0, 0.01, 2.3, 2.2)  # nothing was learned
