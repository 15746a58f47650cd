"""What holds for every task that models are trained on; tasks that are not as they should be."""

import math
import re
from dataclasses import replace

import pytest
import torch

import retrieval_interp as ri
from retrieval_interp.tasks import InputError, TrainingTask
from retrieval_interp.tasks.sampling import SPLITS
from retrieval_interp.tasks.structured import from_data
from retrieval_interp.tasks.training_task import registered
from tests.models import Lookup

TASKS = [
    ri.RetrievalTask(dim=2),
    ri.RetrievalTask(3, 6, False, "token", 100.0, "unit", steps=4),
    ri.ConditionalRetrievalTask(chains=3, graph=ri.GRAPHS["functions"], dim=2),
    ri.ConditionalRetrievalTask(chains=3, dim=2, tables="chains"),
    ri.EquationsTask(),
    ri.EquationsTask(3, 4, curriculum=False),
    ri.RepeatedTokensTask(),
    ri.RepeatedTokensTask(length=8, alphabet=9, rotate=False),
    ri.KHopTask(),
    ri.KHopTask(hops=4, alphabet=5, curriculum=False),
]
each_task = pytest.mark.parametrize("task", TASKS, ids=str)


@each_task
def test_examples_depend_on_their_number_seed_and_split_alone(task):
    before = torch.random.get_rng_state()
    batch = task.sample(10, seed=4)
    for index in (0, 3, 9):
        alone = task.sample(1, seed=4, start=index)
        for name in ("inputs", "targets", "roles"):
            assert torch.equal(getattr(alone, name)[0], getattr(batch, name)[index])
    assert torch.equal(task.examples(torch.tensor([9, 7]), seed=4).inputs, batch.inputs[[9, 7]])
    drawn = [task.sample(50, seed, split=split).inputs for seed in (0, 1) for split in SPLITS]
    rows = {tuple(row) for inputs in drawn for row in inputs.flatten(1).tolist()}
    assert len(rows) == 400
    assert torch.equal(before, torch.random.get_rng_state())  # the caller's


@each_task
def test_every_role_and_position_has_a_name(task):
    batch = task.sample(1)
    labels, n_roles = task.position_labels(batch, 0), batch.roles.shape[-1]
    assert len(task.role_names) == len(task.role_labels) == len(task.role_symbols) == n_roles
    assert len(labels) == task.n_positions == batch.inputs.shape[1]
    if task.vocabulary:
        assert [task.vocabulary.index(label) for label in labels] == batch.inputs[0].tolist()
        assert len(set(task.vocabulary)) == task.d_in


@each_task
def test_knowing_nothing_is_the_plateau(task):
    batch = task.sample(1000)
    outputs = torch.zeros(1000, task.n_positions, task.d_out)
    assert float(task.loss(outputs, batch)) == pytest.approx(task.loss_scale, rel=0.05)
    if task.vocabulary:
        assert task.loss_scale == task.plateau == pytest.approx(math.log(task.candidates))
    assert task.tolerance == pytest.approx(0.05 * task.loss_scale)


@each_task
def test_a_model_with_its_task_survives_a_checkpoint(task, tmp_path):
    sizes = ri.ModelConfig(layers=1, heads=2, d_model=8, mlp=False)
    model = ri.build_model(sizes, task).eval()
    ri.save_checkpoint(tmp_path / "x.safetensors", model, task, sizes, {"step": 7})
    loaded = ri.load_checkpoint(tmp_path / "x.safetensors")
    assert (loaded.config, loaded.training) == (sizes, {"step": 7})
    assert loaded.task == task and loaded.task.to_dict() == task.to_dict()
    batch = task.sample(2)
    with torch.no_grad():
        assert torch.equal(loaded.model(batch.inputs), model(batch.inputs))
    if task.vocabulary:
        words = loaded.model.tokenizer.convert_ids_to_tokens(batch.inputs[0].tolist())
        assert words == task.position_labels(batch, 0)


def test_tasks_of_ones_own_are_known_by_name():
    @registered
    class Double(ri.RepeatedTokensTask):
        name = "double"
        role_names = ("here", "first", "answer")  # in place of the inherited ones

    task = Double(length=4, alphabet=6)
    read = from_data(TrainingTask, {"name": "double", "length": 4, "alphabet": 6}, "t")
    assert read == task and isinstance(read, Double)
    assert task.role_names == ("here", "first", "answer") and replace(task, length=2).length == 2


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: ri.RetrievalTask(chains=0), "chains to be an integer of at least 1, found 0"),
        (lambda: ri.RetrievalTask(base=float("nan")), "above 1, found 4 and nan"),
        (lambda: ri.ConditionalRetrievalTask(chains=100), "8192 positions, found 30500"),
        (lambda: ri.RepeatedTokensTask(length=9, alphabet=8), "at least length = 9, found 8"),
        (lambda: ri.RetrievalTask().sample(1, split="dev"), "expected a split of .* found 'dev'"),
        (lambda: ri.EquationsPrompt(steps=0), "equations: expected steps .* at least 1 "),
        (lambda: from_data(TrainingTask, {"name": "k-hop", "x": 1}, "t"), "the keys hops.* 'x'"),
    ],
)
def test_bad_parameters_are_refused(make, text, without_type_checks):
    with pytest.raises(ri.InputError, match=text):
        make()


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


def counting(self, outputs, batch):
    """By counting from the front: other outputs, and no error."""
    return outputs[:, :4].mean(dim=(1, 2))[:, None]


def ignoring(name):
    """A task that draws the same examples whatever is asked for."""

    def sample(self, n, seed=0, device="cpu", split="train", start=0):
        asked = {"seed": seed, "split": split, "start": start}
        asked[name] = {"seed": 0, "split": "train", "start": 0}[name]
        return Lookup.sample(self, n, device=device, **asked)

    return like(sample=sample)


no_split = like(sample=lambda self, n, seed=0, device="cpu": None)
no_batch = sampling(lambda batch: (batch.inputs, batch.targets, batch.roles))
fewer = sampling(lambda batch: batch[: len(batch) // 2])
scalar = like(example_losses=lambda *args: Lookup.example_losses(*args).mean())
WRONG = [
    (like(scored_roles=(0,), example_losses=counting), "without the others found other losses"),
    (like(ri.Task), "to define role_names = ('s0', 's1'), or names of your own, found"),
    (no_batch, "to return an ri.Batch of 8 examples, with inputs, targets and roles, found tuple"),
    (fewer, "to return an ri.Batch of 8 examples, with inputs, targets and roles, found 4"),
    (scalar, "expected example_losses of shape [8, asked] in floating point, one row per example"),
    (changing("inputs", lambda x: x - 1), "12, which the model knows, found -1 to 11"),
    (changing("roles", torch.Tensor.byte), "expected roles as int64, whole numbers of shape"),
    (changing("roles", lambda x: x * 0 + 99), "0 to 12, or -1 where absent, found 99 to 99"),
    (ignoring("seed"), "other examples for another seed"),
    (ignoring("split"), "other examples for another split"),
    (ignoring("start"), "other examples for another start"),
    (no_split, "expected sample(n, seed, device, split), found sample(n, "),
    (like(vocabulary=("a", "b")), "expected a vocabulary of more than 12 words, found 2"),
    (like(role_labels=("one",)), "expected role_labels of "),
    (like(role_symbols=("one",)), "expected role_symbols of "),
]


@pytest.mark.parametrize(("wrong", "text"), WRONG)
def test_opening_says_in_a_line_what_is_wrong(hooked, wrong, text):
    with pytest.raises(InputError, match=re.escape(text)) as refused:
        ri.open(hooked, wrong(), examples=8)
    assert "\n" not in str(refused.value)


def test_errors_of_a_tasks_own_code_are_left_alone(hooked):
    def fails(batch):
        raise TypeError("mine")

    with pytest.raises(TypeError, match="mine"):
        ri.open(hooked, sampling(fails)(), examples=8)
    assert torch.is_grad_enabled()
