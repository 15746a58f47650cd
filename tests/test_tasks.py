"""What holds for every task that models are trained on."""

import math
from dataclasses import replace

import pytest
import torch

import retrieval_interp as ri
from retrieval_interp.model import ModelConfig, build_model
from retrieval_interp.tasks import TrainingTask
from retrieval_interp.tasks.sampling import SPLITS
from retrieval_interp.tasks.structured import from_data
from retrieval_interp.tasks.training_task import registered

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
    sizes = ModelConfig(layers=1, heads=2, d_model=8, mlp=False)
    model = build_model(sizes, task).eval()
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
        (lambda: ri.RetrievalTask(dim=3), "an even dim"),
        (lambda: ri.RetrievalTask(base=float("nan")), "above 1, found 4 and nan"),
        (lambda: ri.ConditionalRetrievalTask(chains=100), "8192 positions, found 30500"),
        (lambda: ri.ConditionalRetrievalTask(graph="triple"), "graph to be a RetrievalGraph"),
        (lambda: ri.RepeatedTokensTask(length=9, alphabet=8), "at least length = 9, found 8"),
        (lambda: ri.RepeatedTokensTask(alphabet=65536), "alphabet .* at most 65535, found 65536"),
        (lambda: ri.RetrievalTask().sample(0), "expected n of at least 1, found 0"),
        (lambda: ri.RetrievalTask().sample(1, split="dev"), "expected a split of .* found 'dev'"),
        (lambda: ri.EquationsPrompt(steps=0), "equations: expected steps .* at least 1 "),
        (lambda: from_data(TrainingTask, {"name": "x"}, "t"), "the name 'conditional' or .* 'x'"),
        (lambda: from_data(TrainingTask, {"name": "k-hop", "x": 1}, "t"), "the keys hops.* 'x'"),
    ],
)
def test_bad_parameters_are_refused(make, text, without_type_checks):
    with pytest.raises(ri.InputError, match=text):
        make()
