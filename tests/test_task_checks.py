"""Tasks that are not as they should be, refused in a line when they are opened."""

import re

import pytest
import torch
import torch.nn.functional as F

import retrieval_interp as ri
from retrieval_interp.tasks import InputError
from tests.test_own_model import Lookup, hooked_model


class NoNames(ri.Task):
    pass


class NoSample(ri.Task):
    role_names = ("s0", "s1", "s2")


class NoLosses(ri.Task):
    role_names = ("s0", "s1", "s2")
    sample = Lookup.sample


class NoSplit(Lookup):
    def sample(self, n, seed=0, device="cpu"):
        return super().sample(n, seed, device)


class TooMuch(Lookup):
    def sample(self, n, seed, device, split, length):
        return super().sample(n, seed, device, split)


class NoBatch(Lookup):
    def example_losses(self, outputs):
        return outputs


class Tuple(Lookup):
    def sample(self, *arguments, **options):
        batch = super().sample(*arguments, **options)
        return batch.inputs, batch.targets, batch.roles


class Fewer(Lookup):
    def sample(self, n, *arguments, **options):
        return super().sample(n // 2, *arguments, **options)


class Scalar(Lookup):
    def example_losses(self, outputs, batch):
        return super().example_losses(outputs, batch).mean()


class FewWords(Lookup):
    vocabulary = ("a", "b")


class Wrong(Lookup):
    """Right or wrong, as a truth value."""

    def example_losses(self, outputs, batch):
        return outputs[:, -4:].argmax(-1) != batch.targets


def changing(name, change):
    """A task whose batches have another of one field."""

    class Changed(Lookup):
        def sample(self, *arguments, **options):
            batch = super().sample(*arguments, **options)
            vars(batch)[name] = change(vars(batch)[name])
            return batch

    return Changed


class Indexing(Lookup):
    """Says that only queries are asked, and looks for them where they stand in whole sequences."""

    answer_roles = (0,)

    def example_losses(self, outputs, batch):
        logits = outputs[torch.arange(len(batch))[:, None], batch.roles[:, :, 0]].transpose(1, 2)
        return F.cross_entropy(logits, batch.targets, reduction="none").mean(dim=1, keepdim=True)


class Counting(Lookup):
    """The same by counting from the front: other outputs, and no error."""

    answer_roles = (0,)

    def example_losses(self, outputs, batch):
        return outputs[:, :4].mean(dim=(1, 2))[:, None]


class Answering(Lookup):
    answer_roles = (0,)

    def example_losses(self, outputs, batch):
        return super().example_losses(self.answers(outputs, batch).flatten(1, 2), batch)


WRONG = [
    (Indexing, "outputs by self.answers(outputs, batch), as only those of answer_roles may be"),
    (Indexing, "without the others found IndexError: index"),
    (Counting, "without the others found other losses"),
    (NoNames, "expected NoNames to define role_names = ('s0', 's1'), or names of your own, found"),
    (NoSample, "expected NoSample to define sample(n, seed, device, split), found nothing"),
    (NoLosses, "expected NoLosses to define example_losses(outputs, batch), found nothing"),
    (NoSplit, "expected sample(n, seed, device, split), found sample(n, seed=0, device='cpu')"),
    (TooMuch, "found sample(n, seed, device, split, length) (missing a required argument"),
    (NoBatch, "expected example_losses(outputs, batch), found example_losses(outputs) (too many"),
    (Tuple, "expected sample to return an ri.Batch of inputs, targets and roles, found tuple"),
    (Fewer, "expected 8 examples from sample(8, ...), found 4: inputs of int64 of [4, 13]"),
    (Scalar, "expected example_losses of shape [8, asked], one row per example and one column"),
    (Scalar, "if one thing is asked, found float32 of []"),
    (FewWords, "a vocabulary with a word for every token, found 2 words and the token 12"),
    (Wrong, "in floating point, of which a mean can be taken, found bool of [8, 4]; use .float()"),
    (changing("inputs", lambda x: x - 1), "ids from 0 to 12, which the model knows, found -1"),
    (changing("inputs", lambda x: x + 1), "ids from 0 to 12, which the model knows, found 13"),
    (changing("inputs", torch.Tensor.float), "ids as int64, which the model reads, found float32"),
    (changing("inputs", lambda x: x.repeat(1, 2)), "at most 13 tokens, for which the model has"),
    (changing("targets", lambda x: x[:3]), "targets of 8 examples, as many as inputs, found int64"),
    (changing("roles", torch.Tensor.byte), "expected roles as int64, whole numbers of shape"),
    (changing("roles", lambda x: x > 9), "[batch, chain, role], found bool of [8, 4, 3]"),
    (changing("attention_mask", lambda _: [[1] * 13] * 8), "attention_mask of shape [8, 13], True"),
]


@pytest.fixture(scope="module")
def model():
    return hooked_model()


@pytest.mark.parametrize(("wrong", "text"), WRONG)
def test_opening_says_in_a_line_what_is_wrong(model, wrong, text):
    with pytest.raises(InputError, match=re.escape(text)) as refused:
        ri.open(model, wrong(), examples=8)
    assert "\n" not in str(refused.value)


def test_losses_of_answers_are_those_of_whole_sequences(model):
    for circuit in ("L0.H0 uniform", "L1.H1 identity"):
        alone, whole = (ri.open(model, task(), examples=8) for task in (Answering, Lookup))
        assert alone.suppose(circuit).data == pytest.approx(whole.suppose(circuit).data, abs=1e-5)


@pytest.mark.parametrize("wrong", [NoNames, NoSplit, Tuple, Fewer])
def test_scans_searches_and_needed_paths_say_the_same(model, wrong):
    for call in (
        lambda: ri.scan(model, wrong(), examples=8),
        lambda: ri.discover(model, wrong(), examples=8),
        lambda: ri.needed_paths(model, wrong(), examples=8),
    ):
        with pytest.raises(InputError, match="task: expected"):
            call()


def test_errors_of_a_tasks_own_code_are_left_alone(model):
    class Fails(Lookup):
        def sample(self, *arguments, **options):
            raise TypeError("mine")

    with pytest.raises(TypeError, match="mine"):
        ri.open(model, Fails(), examples=8)
    assert torch.is_grad_enabled()
