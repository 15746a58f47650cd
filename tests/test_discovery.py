"""Searches: against naive runs and every single change, and where they are left early."""

import contextlib
import itertools
import json
import os
import struct
import sys
import weakref

import pytest
import torch

import retrieval_interp as ri
from retrieval_interp.circuits.circuit import Circuit, Head
from retrieval_interp.circuits.discovery.search import (
    Search,
    SearchOptions,
    discover,
)
from retrieval_interp.circuits.losses import Scorer, mean_loss, standard_error
from retrieval_interp.circuits.mechanisms import IDENTITY, UNIFORM
from retrieval_interp.circuits.scores.score import score_circuit
from retrieval_interp.tasks import InputError, Task
from tests.built_by_hand import Star, built, finds_the_star
from tests.oracles import naive_mse

# Searches take several times as long with the tests' type checks, which other tests have.
pytestmark = pytest.mark.usefixtures("without_type_checks")
FEW = {"examples": 16, "heads": "L2.H0 L4.H0"}


@pytest.mark.slow
@pytest.mark.parametrize("shared", [True, False])
def test_a_found_circuit_holds_elsewhere_and_no_two_changes_make_it_cheaper(small, shared):
    """Changes are tried one by one and two by two, apart from the search."""
    found = discover(small.model, small.task, examples=64, shared=shared)
    batch = small.task.sample(256, seed=7, split="test")
    score = score_circuit(small.model, small.task, found, batch, controls=0)
    assert score.sufficient and len(found.mechanisms) == 5
    mechanisms = found.mechanisms.values()
    assert sum(bool(m.paths) for m in mechanisms) == 3  # useful heads: the least for D = 3
    assert shared or {m.kind for m in mechanisms} <= {"one-hot", "uniform", "identity"}
    scorer = Scorer(small.model, small.task, small.task.sample(64, split="discovery"))
    circuit = Circuit(found.mechanisms, found.n_roles, found.task)

    def holds(trial):
        losses = scorer.losses(trial)
        return mean_loss(losses) + 2 * standard_error(losses.mean(dim=1)) < 0.05

    def simpler(trial):
        useful = [head for head, mechanism in trial.mechanisms.items() if mechanism.paths]
        yield from (trial.without(path) for path in trial.paths())
        yield from (trial.replace(head, idle) for head in useful for idle in (UNIFORM, IDENTITY))

    assert holds(circuit)
    once = list(simpler(circuit))
    twice = list(itertools.chain.from_iterable(map(simpler, once)))
    assert len(twice) > 50 and not any(map(holds, [*once, *twice]))


class Silent(Task):
    """The task of another, which names neither a plateau nor a tolerance."""

    def __init__(self, task):
        self.task = task
        self.sample, self.example_losses = task.sample, task.example_losses

    role_names = property(lambda self: self.task.role_names)


@pytest.mark.slow
def test_without_a_tolerance_95_percent_of_what_was_learned_is_kept(small):
    task = Silent(small.task)
    batch = task.sample(64, split="test")
    circuit = discover(small.model, task, examples=64)
    score = score_circuit(small.model, task, circuit, batch, controls=0)
    blind = Circuit({Head(layer, 0): UNIFORM for layer in range(5)}, 7)
    uninformed, intact, combined = (
        naive_mse(small.model, small.task, each, batch) for each in (blind, Circuit({}, 7), circuit)
    )
    assert score.uninformed_loss == pytest.approx(uninformed, abs=1e-5)
    assert score.tolerance == pytest.approx(uninformed - 0.95 * (uninformed - intact), abs=1e-5)
    share = (uninformed - combined) / (uninformed - intact)
    assert score.kept == pytest.approx(share, abs=1e-5)
    assert score.sufficient and score.kept > 0.95


@pytest.mark.slow
def test_what_is_worse_than_knowing_nothing_is_no_circuit(small):
    """However large the tolerance is."""
    found = discover(small.model, small.task, tolerance=10.0, examples=64)
    batch = small.task.sample(64, split="test")
    assert naive_mse(small.model, small.task, found, batch) < 0.75


def test_a_strategy_of_ones_own_decides_what_is_tried(small):
    """Paths are taken away from the best start, each in turn, while the circuit holds."""

    def greedy(search):
        circuit = min(search.starts, key=search.rank)
        yield f"limit {search.limit:g}"
        for path in circuit.paths():
            yield f"without {path}"
            fewer = circuit.without(path)
            assert fewer[path.head] in search.options_of(circuit, path.head)
            if search.loss(fewer, near=circuit) < search.limit and search.holds(fewer, circuit):
                assert search.key(fewer) <= search.key(circuit)
                circuit = fewer

    search = Search(small.model, small.task, SearchOptions(**FEW), greedy)
    doing = [state.doing for state in search]
    assert doing[0] == "limit 0.05" and sum(text.startswith("without") for text in doing) > 4
    scorer = Scorer(small.model, small.task, search.batch)
    assert scorer.loss(search.best) < 0.05 and not search.circuit.unfinished
    assert search.cost(search.best) < min(map(search.cost, search.starts))
    assert search.circuit == discover(small.model, small.task, strategy=greedy, **FEW)


def test_a_search_that_is_done_is_freed_at_once(small):
    """Its runs hold gigabytes for a deep model, which do not wait for the garbage collector."""
    search = Search(small.model, small.task, SearchOptions(**FEW))
    judge = weakref.ref(search.judge)
    next(state for state in search if state.scored > 9)
    del search
    assert judge() is None


@pytest.mark.slow
def test_a_search_tells_what_is_tried_and_the_best_circuit_so_far(small):
    search = Search(small.model, small.task, SearchOptions(examples=64))
    states = list(search)
    numbers = [state.scored for state in states]
    assert numbers == sorted(numbers) and len(set(numbers)) > 20
    doing = {state.doing for state in states}
    told = {f"looking for fewer {what}" for what in ("paths", "heads")}
    assert told | {"starting", "ordering paths"} < doing
    costs = [state.cost for state in states if state.cost is not None]
    assert costs == sorted(costs, reverse=True) and states[0].cost is None
    # The last one told is that of the circuit found, measured by another search.
    last, found = states[-1], search.circuit
    other = Search(small.model, small.task, SearchOptions(examples=64))
    assert last.cost == other.space.cost(found)
    assert last.loss == pytest.approx(float(other.judge.losses(found).mean()))
    before = [weight.clone() for weight in small.model.parameters()]
    again = discover(small.model, small.task, examples=64)
    assert found.unfinished == "" and found == again
    assert all(map(torch.equal, before, small.model.parameters()))


@pytest.mark.parametrize("how", [pytest.param("returns", marks=pytest.mark.slow), "interrupts"])
def test_a_search_that_is_left_gives_its_best_so_far(small, how):
    states = list(Search(small.model, small.task, SearchOptions(**FEW)))
    first = next(place for place, state in enumerate(states) if state.cost is not None)
    seen = []

    def progress(search, what):
        for state in search:
            seen.append(state)
            if len(seen) > first + 20:
                if how == "interrupts":
                    raise KeyboardInterrupt
                return
            yield state

    found = discover(small.model, small.task, **FEW, progress=progress)
    assert seen == states[: len(seen)] and found == seen[-1].best and found.enabling == ()
    assert found.unfinished.startswith("the search was cancelled; a simpler circuit may exist")
    with pytest.raises(KeyboardInterrupt, match="before any circuit held"):
        discover(small.model, small.task, **FEW, progress=lambda search, what: [])


def test_the_time_of_a_search_counts_what_is_measured_first(monkeypatch):
    """The clock ticks with every pass through a layer."""
    model, ticks = built(7, [finds_the_star(12.0, 20.0)]), []
    model.blocks[0].register_forward_hook(lambda *_: ticks.append(1))
    for module in ("judge", "search", "alternatives"):
        name = f"retrieval_interp.circuits.discovery.{module}.monotonic"
        monkeypatch.setattr(name, lambda: len(ticks))
    search = Search(model, Star(), SearchOptions(examples=32))
    next(iter(search))
    set_up = len(ticks)
    circuit = search.run()
    for time in (1.0, set_up / 2, float(set_up)):
        ticks.clear()
        found = discover(model, Star(), examples=32, time=time)
        assert len(ticks) <= time + 1 < set_up + 2 and not found.mechanisms
        assert found.unfinished.startswith("the search was stopped by its time limit; no circuit")
        ticks.clear()
        others = ri.alternatives(model, Star(), circuit, examples=32, time=time)
        assert len(ticks) <= time + 1 and not others.complete
    ticks.clear()
    best = discover(model, Star(), examples=32, time=2.0 * set_up)  # a circuit held by then
    assert len(ticks) <= 2 * set_up + 1 and best.mechanisms == circuit.mechanisms
    assert "a simpler circuit may exist" in best.unfinished
    assert not model.blocks[0]._forward_pre_hooks
    score = score_circuit(model, Star(), found, Star().sample(32, split="test"), controls=0)
    assert "No circuit: none was found" in ri.verdict(score, Star())


@pytest.mark.parametrize("place", [1, 3, 40])
def test_an_interrupt_leaves_nothing_on_the_model(small, place):
    learnable = [parameter.requires_grad for parameter in small.model.parameters()]
    attended, runs = itertools.count(1), "blocks.2.attn.hook_pattern"

    def interrupt(pattern, hook):
        if next(attended) == place:
            raise KeyboardInterrupt

    with small.model.hooks(fwd_hooks=[(runs, interrupt)]):
        before = {name: len(p.fwd_hooks) for name, p in small.model.hook_dict.items()}
        with contextlib.suppress(KeyboardInterrupt):  # a circuit that holds is given back
            found = discover(small.model, small.task, **FEW)
            assert found.unfinished
        assert next(attended) > place
        assert before == {name: len(p.fwd_hooks) for name, p in small.model.hook_dict.items()}
    assert learnable == [parameter.requires_grad for parameter in small.model.parameters()]
    assert all(parameter.grad is None for parameter in small.model.parameters())


@pytest.mark.parametrize(
    ("choices", "said"),
    [
        ({"time": 0.0}, "time: expected more than 0"),
        ({"time": float("nan")}, "time: expected more than 0"),
        ({"fewest": "rows"}, "fewest: expected paths or heads, found 'rows'"),
        ({"heads": [Head(9, 0)]}, "heads: expected .* L0.H0 to L4.H0, found L9.H0"),
        ({"heads": []}, "heads: .* found none"),
    ],
)
def test_options_out_of_range_are_refused(small, choices, said):
    with pytest.raises(InputError, match=said):
        discover(small.model, small.task, examples=16, **choices)


def test_a_search_may_be_confined_to_some_heads(small):
    heads = [Head(1, 0), Head(3, 0)]
    found = discover(small.model, small.task, examples=16, heads=heads)
    assert list(found.mechanisms) == heads
    assert {path.head for path in found.every_path()} <= set(heads)
    for text in (["L3.H0", "L1.H0"], "L1.H0 L3.H0"):
        assert Search(small.model, small.task, SearchOptions(heads=text)).heads == heads
    with pytest.raises(InputError, match="expected a head such as L1.H0, found '1'"):
        Search(small.model, small.task, SearchOptions(heads="1"))


@pytest.mark.slow
def test_the_command_passes_options_on(run_command_in_process, tmp_path):
    options = ["--examples", 32, "--one-hot", "--json", "numbers.json"]
    done = run_command_in_process("ablate", *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    data = json.loads((tmp_path / "numbers.json").read_text())
    kinds = {row["mechanism"] for row in data["heads"]}
    assert data["examples"] == 32 and "one-hot" in kinds and "shared" not in kinds


def test_an_unfinished_circuit_says_so_in_files_and_text(small):
    plain = ri.parse_circuit(["L2.H0 one-hot s0<-s2 s4<-s6", "L3.H0 uniform"], small.task)
    marked = Circuit(plain.mechanisms, 7, task=plain.task, unfinished="the search was cancelled")
    again = Circuit.from_json(marked.to_json(), 7)
    assert again == marked == plain and again.unfinished == "the search was cancelled"
    assert "unfinished" not in plain.to_json() and "unfinished" not in repr(plain)
    assert repr(marked).splitlines()[-1] == "unfinished: the search was cancelled"
    assert marked.replace(Head(3, 0), plain[Head(2, 0)]).unfinished == ""


@pytest.mark.slow
def test_ctrl_c_on_a_terminal_gives_the_best_circuit_so_far(tmp_path):
    import fcntl
    import pty
    import termios

    command = [sys.executable, "-m", "retrieval_interp", "ablate", "--examples", "64"]
    command += ["--save-circuit", "circuit.json", "--json", "numbers.json"]
    pid, end = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 80, 0, 0))
        os.execv(sys.executable, command)
    shown, pressed, part = b"", False, b" "
    while part:
        try:
            part = os.read(end, 4096)
        except OSError:
            break
        shown += part
        if not pressed and b"best cost" in shown:
            pressed = bool(os.write(end, b"\x03"))
    os.close(end)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, shown
    assert "Unfinished: the search was cancelled" in " ".join(shown.decode().split())
    for name in ("circuit.json", "numbers.json"):
        data = json.loads((tmp_path / name).read_text())
        assert data["unfinished"].startswith("the search was cancelled")
