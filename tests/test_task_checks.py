"""Tasks that are not as they should be, refused in a line when they are opened."""

import re

import pytest
import torch

import retrieval_interp as ri
from retrieval_interp.tasks import InputError
from tests.oracles import Lookup


def like(base=Lookup, **attributes):
    """A task with other attributes."""
    return type("Mine", (base,), attributes)


def sampling(change):
    return like(sample=lambda self, *args, **how: change(Lookup.sample(self, *args, **how)))


def changing(name, change):
    """A task whose batches have another of one field."""

    def changed(batch):
        vars(batch)[name] = change(vars(batch)[name])
        return batch

    return sampling(changed)


def losing(change):
    return like(example_losses=lambda *args: change(Lookup.example_losses(*args)))


def counting(self, outputs, batch):
    """By counting from the front: other outputs, and no error."""
    return outputs[:, :4].mean(dim=(1, 2))[:, None]


class Answering(Lookup):
    answer_roles = (0,)

    def example_losses(self, outputs, batch):
        return super().example_losses(self.answers(outputs, batch).flatten(1, 2), batch)


NAMES = ("s0", "s1", "s2")
no_names = like(ri.Task)
no_batch = sampling(lambda batch: (batch.inputs, batch.targets, batch.roles))
fewer = sampling(lambda batch: batch[: len(batch) // 2])
scalar = losing(torch.mean)
WRONG = [
    (like(answer_roles=(0,), example_losses=counting), "outputs by self.answers(outputs, batch), "),
    (like(answer_roles=(0,), example_losses=counting), "without the others found other losses"),
    (no_names, "to define role_names = ('s0', 's1'), or names of your own, found"),
    (like(ri.Task, role_names=NAMES), "to define sample(n, seed, device, split), found nothing"),
    (
        like(ri.Task, role_names=NAMES, sample=Lookup.sample),
        "expected Mine to define example_losses(outputs, batch), found nothing",
    ),
    (no_batch, "to return an ri.Batch of 8 examples, with inputs, targets and roles, found tuple"),
    (fewer, "to return an ri.Batch of 8 examples, with inputs, targets and roles, found 4"),
    (scalar, "expected example_losses of shape [8, asked] in floating point, one row per example"),
    (changing("inputs", lambda x: x - 1), "12, which the model knows, found -1 to 11"),
    (changing("inputs", lambda x: x.repeat(1, 2)), "at most 13 tokens, for which the model has"),
    (changing("roles", torch.Tensor.byte), "expected roles as int64, whole numbers of shape"),
    (changing("roles", lambda x: x * 0 + 99), "0 to 12, or -1 where absent, found 99 to 99"),
    (like(role_names=("query", "key", "the value")), "found 'the value' for s2"),
    (changing("attention_mask", lambda _: [[1] * 13] * 8), "attention_mask of shape [8, 13], True"),
]


@pytest.mark.parametrize(("wrong", "text"), WRONG)
def test_opening_says_in_a_line_what_is_wrong(hooked, wrong, text):
    with pytest.raises(InputError, match=re.escape(text)) as refused:
        ri.open(hooked, wrong(), examples=8)
    assert "\n" not in str(refused.value)


def test_losses_of_answers_are_those_of_whole_sequences(hooked):
    for circuit in ("L0.H0 uniform", "L1.H1 identity"):
        alone, whole = (ri.open(hooked, task(), examples=8) for task in (Answering, Lookup))
        assert alone.suppose(circuit).data == pytest.approx(whole.suppose(circuit).data, abs=1e-5)


def test_errors_of_a_tasks_own_code_are_left_alone(hooked):
    def fails(batch):
        raise TypeError("mine")

    with pytest.raises(TypeError, match="mine"):
        ri.open(hooked, sampling(fails)(), examples=8)
    assert torch.is_grad_enabled()
