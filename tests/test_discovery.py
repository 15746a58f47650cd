"""Searches: against naive runs and every single change, and where they are left early."""

import contextlib
import itertools
import json
import signal
import weakref
from functools import reduce

import pytest
import torch

import retrieval_interp as ri
from retrieval_interp.circuits.circuit import Circuit, suppose
from retrieval_interp.circuits.discovery.attribution import attribute
from retrieval_interp.circuits.discovery.space import Effort, Neighbourhood
from retrieval_interp.circuits.losses import Scorer, mean_loss, standard_error
from retrieval_interp.circuits.mechanisms import IDENTITY, UNIFORM
from retrieval_interp.circuits.paths import Head
from tests.built_by_hand import LastMark, Star, built, copies, finds_the_star, passing_model, scores
from tests.naive import hooks_left, naive_loss

# Searches take several times as long with the tests' type checks, which other tests have.
pytestmark = pytest.mark.usefixtures("without_type_checks")


def with_an_idle_head():
    """A model of a layer whose second head does nothing, and its task."""
    return built(7, [finds_the_star(12.0, 20.0), (scores(7), copies(0.0))]), Star()


@pytest.mark.slow
@pytest.mark.parametrize("shared", [True, False])
def test_a_found_circuit_holds_elsewhere_and_no_two_changes_make_it_cheaper(small, shared):
    """Changes are tried one by one and two by two, apart from the search."""
    found = ri.discover(small.model, small.task, examples=64, shared=shared)
    batch = small.task.sample(256, seed=7, split="test")
    score = ri.score_circuit(small.model, small.task, found, batch, controls=0)
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


def test_circuits_nearby_should_lose_what_is_estimated_or_measured():
    """Estimated changes of several heads; the change of one to a simpler mechanism, measured."""
    search = ri.Search(passing_model(), LastMark(), ri.SearchOptions(examples=32))
    judge, start = search.judge, min(search.starts, key=search.complexity)
    estimates = attribute(search.model, search.task, judge.batch, start)
    nearby = Neighbourhood(search.space, start, judge, Effort(measured=0, measured_if_cheap=0))
    found = nearby.around(limit := 6 * search.complexity(start))
    for near in found:
        circuit = nearby.circuit_of(near)
        rise = estimates.estimate(circuit).effect
        assert near.loss == pytest.approx(judge.loss(start) + rise, abs=1e-6)
        assert near.complexity == search.complexity(circuit)
    largest = max(near.complexity for near in found)
    assert len(found) > 4 and search.complexity(start) < largest < limit
    start = search.starts[-1]  # of measured patterns, near which are many simpler ones
    nearby = Neighbourhood(search.space, start, judge)
    first = nearby.greedy_changes(search.limit, down=True)[0]  # with one head made simpler
    rise = judge.loss(nearby.circuit_of(first), examples=16) - judge.loss(start, examples=16)
    assert first.loss == pytest.approx(judge.loss(start) + rise, abs=1e-9)


@pytest.mark.slow
def test_what_is_worse_than_knowing_nothing_is_no_circuit(small):
    """However large the tolerance is."""
    found = ri.discover(small.model, small.task, tolerance=10.0, examples=64)
    batch = small.task.sample(64, split="test")
    assert naive_loss(small.model, small.task, found, batch) < 0.75


def test_a_strategy_of_ones_own_decides_what_is_tried():
    """Paths are taken away from the best start, each in turn, while the circuit holds."""
    model, task = passing_model(), LastMark()

    def greedy(search):
        circuit = min(search.starts, key=search.rank)
        yield f"limit {search.limit:g}"
        for path in circuit.paths():
            yield f"without {path}"
            fewer = circuit.without(path)
            assert fewer[path.head] in search.neighbours_of(circuit, path.head)
            if search.loss(fewer, near=circuit) < search.limit and search.holds(fewer, circuit):
                assert search.complexity(fewer) <= search.complexity(circuit)
                circuit = fewer

    search = ri.Search(model, task, ri.SearchOptions(examples=32), greedy)
    doing = [state.doing for state in search]
    assert doing[0] == f"limit {search.limit:g}"
    assert sum(text.startswith("without") for text in doing) > 4
    scorer = Scorer(model, task, search.batch)
    assert scorer.loss(search.best) < search.limit and not search.circuit.unfinished
    assert search.cost(search.best) < min(map(search.cost, search.starts))
    bench = ri.open(model, task, examples=32)
    bench.discover(strategy=greedy)
    assert search.circuit == bench.circuit


def test_what_the_model_needs_is_found_though_no_circuit_holds():
    """Also if a strategy asks for none of the circuits that the search offers."""
    model, task = passing_model(), LastMark()

    def uniform_alone(search):
        yield "every head uniform"
        assert not search.holds(Circuit(dict.fromkeys(search.heads, UNIFORM), 3, task.to_dict()))

    found = ri.discover(model, task, strategy=uniform_alone, examples=32)
    assert not found.mechanisms and not found.unfinished
    needed = ri.needed_paths(model, task, examples=32)
    assert found.enabling and set(found.enabling) == {path for (path,) in needed}


def test_a_search_that_is_done_is_freed_at_once():
    """Its runs hold gigabytes for a deep model, which do not wait for the garbage collector."""
    search = ri.Search(*with_an_idle_head(), ri.SearchOptions(examples=32))
    judge = weakref.ref(search.judge)
    next(state for state in search if state.scored > 1)
    del search
    assert judge() is None


@pytest.mark.slow
def test_a_search_tells_what_is_tried_and_the_best_circuit_so_far(small):
    search = ri.Search(small.model, small.task, ri.SearchOptions(examples=64))
    states = list(search)
    numbers = [state.scored for state in states]
    assert numbers == sorted(numbers) and len(set(numbers)) > 20
    doing = {state.doing for state in states}
    told = {"starting", "ordering paths", "looking for fewer paths", "looking for fewer heads"}
    assert told < doing
    costs = [state.cost for state in states if state.cost is not None]
    assert costs == sorted(costs, reverse=True) and states[0].cost is None
    # The last one told is that of the circuit found.
    last, found, scorer = states[-1], search.circuit, Scorer(small.model, small.task, search.batch)
    assert found.unfinished == "" and last.cost == search.cost(found)
    assert last.loss == pytest.approx(scorer.loss(found))


def interrupt():
    raise KeyboardInterrupt


@pytest.mark.parametrize("leave", [lambda: None, interrupt])
def test_a_search_that_is_left_gives_its_best_so_far(leave):
    asked, seen = with_an_idle_head(), []
    states = list(ri.Search(*asked, ri.SearchOptions(examples=32)))
    first = next(place for place, state in enumerate(states) if state.cost is not None)

    def progress(search, what):
        for state in search:
            seen.append(state)
            if len(seen) > first + 5:
                return leave()
            yield state

    found = ri.discover(*asked, examples=32, progress=progress)
    assert seen == states[: len(seen)] and found == seen[-1].best and found.enabling == ()
    assert found.unfinished.startswith("the search was cancelled; a simpler circuit may exist")
    with pytest.raises(KeyboardInterrupt, match="before any circuit held"):
        ri.discover(*asked, examples=32, progress=lambda search, what: [])


def test_the_time_of_a_search_counts_what_is_measured_first(monkeypatch):
    """The clock ticks with every pass through a layer."""
    model, ticks = built(7, [finds_the_star(12.0, 20.0)]), []
    model.blocks[0].register_forward_hook(lambda *_: ticks.append(1))
    for module in ("deadline", "discovery.search", "discovery.alternatives"):
        name = f"retrieval_interp.circuits.{module}.monotonic"
        monkeypatch.setattr(name, lambda: len(ticks))
    search = ri.Search(model, Star(), ri.SearchOptions(examples=32))
    next(iter(search))
    set_up = len(ticks)
    circuit = search.run()
    for time in (1.0, set_up / 2, float(set_up)):
        ticks.clear()
        found = ri.discover(model, Star(), examples=32, time=time)
        assert len(ticks) <= time + 1 < set_up + 2 and not found.mechanisms
        assert found.unfinished.startswith("the search was stopped by its time limit; no circuit")
        ticks.clear()
        others = ri.alternatives(model, Star(), circuit, examples=32, time=time)
        assert len(ticks) <= time + 1 and not others.complete
    ticks.clear()
    best = ri.discover(model, Star(), examples=32, time=2.0 * set_up)  # a circuit held by then
    assert len(ticks) <= 2 * set_up + 1 and best.mechanisms == circuit.mechanisms
    assert "a simpler circuit may exist" in best.unfinished
    assert not model.blocks[0]._forward_pre_hooks
    score = ri.score_circuit(model, Star(), found, Star().sample(32, split="test"), controls=0)
    assert "No circuit: none was found" in ri.verdict(score, Star())


@pytest.mark.parametrize("place", [1, 3, 40])
def test_an_interrupt_leaves_nothing_on_the_model(place):
    model, task = passing_model(), LastMark()
    model.W_U.requires_grad_(False)
    weights = [(weight.requires_grad, weight.clone()) for weight in model.parameters()]
    attended, runs = itertools.count(1), "blocks.1.attn.hook_pattern"

    def interrupt(pattern, hook):
        if next(attended) == place:
            raise KeyboardInterrupt

    with model.hooks(fwd_hooks=[(runs, interrupt)]):
        before = hooks_left(model)
        with contextlib.suppress(KeyboardInterrupt):  # a circuit that holds is given back
            found = ri.discover(model, task, examples=32)
            assert found.unfinished
        assert next(attended) > place
        assert hooks_left(model) == before
    for weight, (learnable, value) in zip(model.parameters(), weights):
        assert weight.requires_grad == learnable and weight.grad is None
        assert torch.equal(weight, value)


@pytest.mark.parametrize(
    ("choices", "said"),
    [
        ({"time": 0.0}, "time: expected more than 0"),
        ({"time": float("nan")}, "time: expected more than 0"),
        ({"fewest": "rows"}, "fewest: expected paths or heads, found 'rows'"),
        ({"heads": []}, "heads: .* found none"),
        ({"strategy": lambda search: None}, "strategy: expected one that yields .* found NoneType"),
    ],
)
def test_options_out_of_range_are_refused(small, choices, said):
    with pytest.raises(ri.InputError, match=said):
        ri.discover(small.model, small.task, examples=16, **choices)


def test_fewest_decides_between_fewer_paths_and_fewer_heads():
    model, task = with_an_idle_head()
    texts = (
        ("L0.H0 one-hot END<-star", "L0.H1 one-hot END<-other"),
        ("L0.H0 one-hot END<-star other<-other star<-star", "L0.H1 uniform"),
    )
    two, one = (reduce(suppose, lines, Circuit.empty(task)) for lines in texts)

    def both(search):
        for circuit in (two, one):
            assert search.holds(circuit)
            yield "trying"

    for fewest, best in (("paths", two), ("heads", one)):
        options = ri.SearchOptions(examples=32, fewest=fewest)
        search = ri.Search(model, task, options, both)
        assert search.run().mechanisms == best.mechanisms
        front = [circuit.mechanisms for circuit in search.front()]
        assert front == [one.mechanisms, two.mechanisms]


def test_a_search_may_be_confined_to_some_heads():
    (model, task), heads = with_an_idle_head(), [Head(0, 1)]
    found = ri.discover(model, task, examples=32, heads=heads)
    assert list(found.mechanisms) == heads
    assert {path.head for path in found.every_path()} <= set(heads)
    for text in (["L0.H1", "L0.H0"], "L0.H0 L0.H1"):
        both = ri.Search(model, task, ri.SearchOptions(heads=text)).heads
        assert both == [Head(0, 0), Head(0, 1)]


@pytest.mark.slow
def test_ctrl_c_gives_the_best_circuit_so_far(run_command_in_process, monkeypatch, tmp_path):
    state_of, files = ri.Search._state, ["--save-circuit", "circuit.json", "--json", "numbers.json"]

    def interrupted(search, doing):
        if (state := state_of(search, doing)).cost is not None:
            signal.raise_signal(signal.SIGINT)
        return state

    monkeypatch.setattr(ri.Search, "_state", interrupted)
    options = ["--examples", 16, "--one-hot", *files]
    done = run_command_in_process("ablate", *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Unfinished: the search was cancelled" in " ".join(done.stdout.split())
    for name in ("circuit.json", "numbers.json"):
        data = json.loads((tmp_path / name).read_text())
        assert data["unfinished"].startswith("the search was cancelled")
    heads = json.loads((tmp_path / "circuit.json").read_text())["heads"]
    assert {head["mechanism"] for head in heads} <= {"uniform", "identity", "one-hot"}  # --one-hot
