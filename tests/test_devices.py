"""Calls, tasks and a command give the same on a GPU, which is pretended where there is none."""

import json
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

import retrieval_interp as ri
from retrieval_interp.storage.models_by_name import load_model
from retrieval_interp.tasks.words.given_texts import NextTokenTask
from tests.models import Lookup
from tests.paper_prompts import SHORTER, TEXTS
from tests.pretended_gpu import PretendedGpu
from tests.texts import byte_pairs, giving, pairs, sentence_tokenizer

sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))
import devices

pytestmark = pytest.mark.usefixtures("without_type_checks")
REAL = torch.cuda.is_available()
PRETENDED = {"is_available": True, "device_count": 1, "get_device_name": "pretended"}
PRETENDED |= {"synchronize": None, "is_current_stream_capturing": False}


@pytest.fixture
def gpu(monkeypatch):
    """A context in which there is a GPU."""
    if REAL:
        return nullcontext()
    for name, value in PRETENDED.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
    return PretendedGpu()


@pytest.fixture
def alike(gpu):
    """Calls a function with `cpu`, and with `cuda` where there is a GPU, and compares results."""

    def compare(function, trains=False):
        on_cpu = function("cpu")
        with gpu:
            apart, words = devices.difference(on_cpu, function("cuda"))
        assert apart < (0.02 if trains and REAL else 1e-4) and not words  # TF32 trains

    return compare


def test_mixing_is_refused_where_cuda_refuses_it(gpu):
    with gpu, pytest.raises(RuntimeError):
        torch.zeros(3) + torch.zeros(3, device="cuda")


ONLY_SMALL = {"alternatives", "emergence", "steps", "train", "compiled_steps"}
ASKED = {  # with the commands below, on vectors, text and tokens
    "small": {"tasks", "ablated", "attribute", "check_hook", "steps", "train"},
    "llama": {call for call, (names, _) in devices.CALLS.items() if "llama" in names},
    "repeated": {call for call in devices.CALLS if call not in ONLY_SMALL},
}


SLOW = {("small", "steps")} | {("llama", call) for call in ("scan", "score", "why", "workbench")}


@pytest.mark.filterwarnings("ignore:scan. expected at least 8 sequences")
@pytest.mark.parametrize(
    ("name", "call"),
    [
        pytest.param(name, call, marks=[pytest.mark.slow] * ((name, call) in SLOW))
        for name, calls in ASKED.items()
        for call in sorted(calls)
    ],
)
def test_calls(alike, name, call):
    def result(device):
        made = devices.CALLS[call][1](devices.opened(name, device, 4, 1e6, True))
        return made() if callable(made) else made

    alike(result, call in ("steps", "train"))


WORDS = byte_pairs(TEXTS)
TASKS = [
    ri.RetrievalTask(chains=2, steps=2, dim=4),
    ri.ConditionalRetrievalTask(chains=3),
    ri.KHopTask(hops=2),
    ri.EquationsTask(steps=2),
    ri.RepeatedTokensTask(6),
    Lookup(),
    *(ri.PromptTask(prompt, WORDS) for prompt in SHORTER),
    giving({"S2": ["Ann", "Bob", "Cid", "Dan"]}),
    ri.PairsTask(pairs({}, {}, {}, {}), sentence_tokenizer()),
    NextTokenTask([[1, 2], [3, 4], [5, 6, 7], [8, 9]]),
]


@pytest.mark.parametrize("task", TASKS, ids=lambda task: type(task).__name__)
def test_tasks(alike, task):
    def result(device):
        batch = task.sample(2, 1, device)
        size = (*batch.inputs.shape[:2], getattr(task, "d_out", 600))
        outputs = torch.randn(size, generator=torch.Generator().manual_seed(0)).to(device)
        other = None if type(task) in (Lookup, NextTokenTask) else task.counterfactual(batch)
        return batch, other, task.example_losses(outputs, batch)

    alike(result)


@pytest.mark.slow
def test_a_command_with_its_report(alike, run_command_in_process, tmp_path):
    options = "--ckpt repeated --examples 8 --alternatives 600 --report out.html --json out.json"

    def result(device):
        folder = tmp_path / device
        folder.mkdir()
        done = run_command_in_process("ablate", *options.split(), "--device", device, cwd=folder)
        assert done.returncode == 0, done.stderr
        numbers = json.loads((folder / "out.json").read_text())
        return {name: numbers[name] for name in numbers.keys() - {"record", "command", "date"}}

    alike(result)


def test_a_device_that_is_not_there_or_not_the_models_is_refused(gpu, small, tmp_path):
    own = tmp_path / "own.py"
    own.write_text("import retrieval_interp as ri\nmodel = ri.load_checkpoint('small').model")
    asked = [
        lambda device: ri.open("small", device=device),
        lambda device: ri.open(small.model, small.task, device=device),
        lambda device: ri.open(small, device=device),
        lambda device: load_model(f"{own}:model", device),
    ]
    for number, refused in enumerate(asked):
        with pytest.raises(ri.InputError, match="expected auto, cpu or cuda, found 'gpu'"):
            refused("gpu")
        with pytest.raises(ri.InputError, match="one of 1 CUDA devices, found 'cuda:1'"):
            refused("cuda:1")
        if number:
            with gpu, pytest.raises(ri.InputError, match="expected the model's, cpu, found 'cuda'"):
                refused("cuda")
