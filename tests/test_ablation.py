import pytest
import torch

from retrieval_interp.circuits.attention import Mask
from retrieval_interp.circuits.circuit import Circuit, Head, RolePath
from retrieval_interp.circuits.hooks import ablated
from retrieval_interp.circuits.mechanisms import IDENTITY, UNIFORM, OneHot, Where
from retrieval_interp.tasks import InputError

ONE_HOT = OneHot((RolePath(0, 2), RolePath(2, 1)))


def hooks_left(model):
    return sum(
        len(point.fwd_hooks) + len(point._forward_hooks) for point in model.hook_dict.values()
    )


def naive_outputs(model, circuit, batch):
    """One plain hook a head, set by hand."""
    hooks = []
    for (layer, head), mechanism in circuit.mechanisms.items():

        def replace(old, hook, head=head, mechanism=mechanism):
            new = old.clone()
            if mechanism.kind == "cut":
                for example in range(len(batch)):
                    for chain in batch.roles[example].tolist():
                        for path in mechanism.paths:
                            new[example, head, chain[path.dest], chain[path.src]] = 0
            else:
                new[:, head] = mechanism.pattern(Where.of(batch, Mask()))
            return new

        hooks.append((f"blocks.{layer}.attn.hook_pattern", replace))
    return model.run_with_hooks(batch.inputs, fwd_hooks=hooks)


def test_replacing_attention_equals_hooks_set_by_hand(task, model):
    batch = task.sample(5)
    circuit = Circuit({Head(0, 1): ONE_HOT, Head(0, 0): UNIFORM, Head(2, 0): IDENTITY}, 5)
    with ablated(model, circuit, batch):
        outputs = model(batch.inputs)
    torch.testing.assert_close(outputs, naive_outputs(model, circuit, batch))
    assert not torch.allclose(outputs, model(batch.inputs))


def test_no_hook_is_left_after_success_error_and_nesting(task, model):
    batch = task.sample(2)
    circuit = Circuit({Head(0, 0): UNIFORM}, 5)
    mine = []
    model.blocks[0].attn.hook_pattern.add_hook(lambda pattern, hook: mine.append(1))
    before = hooks_left(model)
    with ablated(model, circuit, batch):
        model(batch.inputs)
    assert hooks_left(model) == before
    with pytest.raises(ZeroDivisionError), ablated(model, circuit, batch):
        raise ZeroDivisionError
    assert hooks_left(model) == before
    inner = Circuit({Head(0, 0): IDENTITY}, 5)
    with ablated(model, circuit, batch):
        outer_outputs = model(batch.inputs)
        with ablated(model, inner, batch):
            inner_outputs = model(batch.inputs)
        torch.testing.assert_close(model(batch.inputs), outer_outputs)
    assert hooks_left(model) == before
    torch.testing.assert_close(inner_outputs, naive_outputs(model, inner, batch))
    model(batch.inputs)
    assert mine  # the caller's own hook still stands


def test_a_hook_that_did_not_fire_is_an_error(task, model):
    batch = task.sample(2)
    circuit = Circuit({Head(0, 0): UNIFORM}, 5)
    with pytest.raises(InputError, match="blocks.0.attn.hook_pattern did not"):
        with ablated(model, circuit, batch):
            pass
    residual = model(batch.inputs, stop_at_layer=1)
    with pytest.raises(InputError, match="blocks.0.attn.hook_pattern did not"):
        with ablated(model, circuit, batch):
            model(residual, start_at_layer=1)


def test_another_batch_is_refused(task, model):
    circuit = Circuit({Head(0, 0): ONE_HOT}, 5)
    with pytest.raises(InputError, match="for a batch of 3 examples and 15 positions, but"):
        with ablated(model, circuit, task.sample(3)):
            model(task.sample(4).inputs)


def test_heads_that_are_not_there_are_refused(task, model):
    batch = task.sample(2)
    with pytest.raises(InputError, match=r"found L7\.H0"):
        with ablated(model, Circuit({Head(7, 0): UNIFORM}, 5), batch):
            pass
