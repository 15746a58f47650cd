"""All that is public gives the same on a GPU, which is pretended where there is none."""

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest
import torch

import retrieval_interp as ri
from retrieval_interp.circuits import RolePath, Scorer
from retrieval_interp.commands.command import load_model
from retrieval_interp.explorer import state
from retrieval_interp.tasks.words.given_texts import NextTokenTask
from tests import oracles
from tests.elsewhere import Elsewhere
from tests.oracles import Lookup
from tests.test_explorer import ask, explored
from tests.test_joins import MECHANISMS, Lengths, of_kind
from tests.test_text_task import FORMULATIONS, byte_pairs
from tests.test_why import SENTENCE, giving, pairs

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
    worker = partial(ThreadPoolExecutor, initializer=lambda: Elsewhere().__enter__())
    monkeypatch.setattr(state, "ThreadPoolExecutor", worker)
    return Elsewhere()


@pytest.fixture
def alike(gpu):
    """Calls a function with `cpu`, and with `cuda` where there is a GPU, and compares results."""

    def compare(function, trains=False):
        on_cpu = function("cpu")
        with gpu:
            apart, words = devices.difference(on_cpu, function("cuda"))
        assert apart < (0.02 if trains and REAL else 1e-4) and not words  # TF32 trains

    return compare


TEN = torch.arange(10)
MIXED = [
    lambda there, here: there + here,
    lambda there, here: here * there[0],
    lambda there, here: here[0].add_(there[0]),
    lambda there, here: torch.stack([there[0], here[0]]),
    lambda there, here: torch.add(there, there, out=here),
    lambda there, here: there.masked_fill_(here > 0, 1),
    lambda there, here: here[there.long()],
    lambda there, here: there.__setitem__(TEN[:3], here),
    lambda there, here: there.new_zeros(3) + here,
    lambda there, here: torch.randn(3, generator=torch.Generator(), device="cuda"),
    lambda there, here: there.numpy(),
    lambda there, here: torch.nn.functional.linear(here, torch.nn.Parameter(there[None])),
]
FINE = [
    lambda there, here: there + here[0],
    lambda there, here: there[here.long()],
    lambda there, here: here.copy_(there) + here,
    lambda there, here: there.cpu() + there.to("cpu", torch.float64) + here,
    lambda there, here: here.to(there) + here.cuda() + torch.nn.Parameter(there),
    lambda there, here: torch.tensor([there[0], there[1], 0.0]) + here,
    lambda there, here: torch.zeros_like(there, device="cpu") + here + here[there[0].long()],
    lambda there, here: there.detach()[1:] + torch.ones_like(there)[1:] + there.new_tensor([1.0]),
]


@pytest.mark.parametrize("operation", range(len(MIXED) + len(FINE)))
def test_mixing_is_refused_where_cuda_refuses_it(gpu, operation):
    with gpu:
        here, there = torch.zeros(3), torch.zeros(3, device="cuda")
        assert there.is_cuda and str(there.device) == "cuda:0" and here.is_cpu and not there.is_cpu
        if operation < len(MIXED):
            with pytest.raises((RuntimeError, TypeError)):
                MIXED[operation](there, here)
        else:
            FINE[operation - len(MIXED)](there, here)


ASKED = {  # with the commands below, on vectors, text and tokens
    "small": set(devices.CALLS) - {"alternatives", "emergence", "compiled_steps"},
    "llama": {call for call, (names, _) in devices.CALLS.items() if "llama" in names},
    "repeated": {"tasks", "ablated", "attribute", "score", "ablations"},
}


SLOW = {("llama", "why"), ("llama", "score"), ("small", "alternatives")}  # like others that run


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


WORDS, NAMES = byte_pairs(), oracles.byte_pairs([f"{SENTENCE} Mary Ann"] * 3)
TASKS = [
    ri.RetrievalTask(chains=2, steps=2, dim=4),
    ri.ConditionalRetrievalTask(chains=3),
    ri.KHopTask(hops=2),
    ri.EquationsTask(steps=2),
    ri.RepeatedTokensTask(6),
    Lookup(),
    *(ri.PromptTask(prompt, WORDS) for prompt in FORMULATIONS),
    giving({"S2": ["Ann", "Bob", "Cid", "Dan"]}),
    ri.PairsTask(pairs({}, {}, {}, {}), NAMES),
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


@pytest.mark.parametrize("kind", ["hooked", "bridge"])
def test_mechanisms_on_padded_examples(alike, kind):
    circuits = [ri.Circuit({ri.Head(0, 1): mechanism}, 3) for mechanism in MECHANISMS]

    def result(device):
        model, task = of_kind(kind), Lengths("left")
        model.to(device)
        batch = task.sample(6, 0, device)
        scorer = Scorer(model, task, batch)
        paths = [ri.HeadPath(ri.Head(layer, 0), RolePath(0, 2)) for layer in range(2)]
        bench = ri.open(model, task, examples=4, progress=lambda items, what: items)
        losses = bench.suppose("L0.H0 role-mean").data, *map(scorer.losses, circuits)
        shown = bench.attention(examples=[0], with_circuit=True).data
        enabled = ri.enabled_by(model, batch, paths[:1], paths)
        return losses, shown, str(enabled), ri.attribute(model, task, batch).effects(circuits)

    alike(result)


RESULTS = Path(ri.__file__).parent / "results"
COMMANDS = [
    "ablate --ckpt repeated --examples 8 --alternatives 600 --report out.html --json out.json",
    f"emergence --circuit {RESULTS}/small.circuit.json --examples 4 --json out.json",
    "train --steps 1 --batch 4 --log-every 1 --checkpoint-every 1 --no-compile --out .",
]


@pytest.mark.parametrize("words", COMMANDS)
def test_commands(alike, run_command_in_process, tmp_path, words):
    def result(device):
        folder, (command, *options) = tmp_path / device, words.split()
        folder.mkdir()
        if command == "emergence":
            options += ["--run", devices.run()]
        done = run_command_in_process(command, *options, "--device", device, cwd=folder)
        assert done.returncode == 0, done.stderr
        file = folder / ("metrics.jsonl" if command == "train" else "out.json")
        numbers = json.loads(file.read_text())
        for name in ("record", "command", "date", "seconds"):
            numbers.pop(name, None)
        return numbers

    alike(result, words.startswith("train"))


@pytest.mark.slow
def test_the_explorer(alike):
    def result(device):
        bench = ri.open("repeated", examples=4, device=device, progress=lambda items, what: items)
        page = explored(bench)
        for asked in (
            {"do": "show", "head": "L1.H0", "with_circuit": True},
            {"do": "toggle", "path": "L0.H0 s2<-s1"},
            {"do": "suppose", "line": "L1.H0 uniform"},
            {"do": "discover"},
            {"do": "undo"},
        ):
            ask(page, asked.pop("do"), **asked)
            assert not page.page["failed"], page.page["said"]
        return [loss if isinstance(loss, float) else "" for loss in page.losses.values()]

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
