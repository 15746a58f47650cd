"""Seeing where a search is, and ending it: the best circuit so far is given back, marked."""

import itertools
import json
import os
import signal
import sys
import threading
import warnings

import pytest

import retrieval_interp as ri
from retrieval_interp.circuits import Circuit, Head
from retrieval_interp.circuits.discovery.cost import circuit_cost
from retrieval_interp.circuits.discovery.search import Search, discover
from retrieval_interp.circuits.discovery.watch import SearchState, SearchStopped, ctrl_c
from retrieval_interp.tasks import InputError
from tests.terminal import COLUMNS, lines_of, set_size, terminal

HEADS = [Head(layer, 0) for layer in range(5)]


@pytest.fixture(scope="module")
def small():
    return ri.load_checkpoint("small")


@pytest.fixture(scope="module")
def watched(small):
    """A whole search, and everything that its watcher was told."""
    states: list[SearchState] = []
    return discover(small.model, small.task, examples=64, restarts=2, watch=states.append), states


def test_a_watcher_is_told_what_is_tried_and_the_best_circuit_so_far(small, watched):
    found, states = watched
    assert found.unfinished == ""
    numbers = [state.scored for state in states]
    assert numbers == sorted(numbers) and len(set(numbers)) > 100
    doing = dict.fromkeys(state.doing for state in states)
    for text in ("start 1 of 2: simpler heads", "start 2 of 2: simpler heads"):
        assert text in doing
    third = "cutting paths, 3 of"
    assert any(text.startswith(third) for text in doing)
    bests = [(state.cost, state.loss) for state in states if state.cost is not None]
    costs = [cost for cost, _ in bests]
    assert costs == sorted(costs, reverse=True) and states[0].cost is None
    # The last one told is that of the circuit found, measured by another search.
    judge = Search(small.model, small.task, small.task.sample(64, split="discovery"), None).judge
    assert bests[-1] == (circuit_cost(found, HEADS), pytest.approx(judge.exact_loss(found)))
    assert str(states[-1]).endswith(f"best cost {bests[-1][0]}, loss {bests[-1][1]:.4f}")
    assert str(states[0]).endswith("none holds yet")


def test_a_watcher_ends_a_search_with_the_best_circuit_so_far(small, watched):
    _, states = watched
    first = next(place for place, state in enumerate(states) if state.cost is not None)
    looks, seen = itertools.count(), []

    def watch(state):
        seen.append(state)
        return next(looks) >= first + 60

    with pytest.warns(SearchStopped, match="the search was cancelled; a simpler circuit may exist"):
        found = discover(small.model, small.task, examples=64, restarts=2, watch=watch)
    assert len(seen) == first + 61 and seen == states[: len(seen)]
    assert circuit_cost(found, HEADS) == seen[-1].cost
    assert found.enabling == () and found.unfinished.startswith("the search was cancelled")
    assert not any(point.has_hooks() for point in small.model.hook_dict.values())


def test_what_is_cancelled_before_anything_holds_gives_nothing_back(small):
    with pytest.raises(KeyboardInterrupt, match="cancelled before any circuit held"):
        discover(small.model, small.task, examples=16, watch=lambda state: True)


def test_ctrl_c_ends_a_search_and_its_handler_is_put_back(small, watched):
    _, states = watched
    before, looks = signal.getsignal(signal.SIGINT), itertools.count()
    first = next(place for place, state in enumerate(states) if state.cost is not None)

    def watch(state):
        if next(looks) == first + 5:
            signal.raise_signal(signal.SIGINT)

    with pytest.warns(SearchStopped, match="the search was cancelled"):
        found = discover(small.model, small.task, examples=64, restarts=2, watch=watch)
    assert found.mechanisms and found.unfinished
    assert signal.getsignal(signal.SIGINT) is before


def test_the_second_ctrl_c_interrupts_at_once():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), ctrl_c() as pressed:
        assert not pressed()
        signal.raise_signal(signal.SIGINT)
        assert pressed()
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_outside_the_main_thread_signals_are_left_alone():
    seen = []

    def work():
        with ctrl_c() as pressed:
            seen.append((pressed(), signal.getsignal(signal.SIGINT)))

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(False, before)]


def test_the_mark_is_kept_in_files_text_and_scores_and_goes_with_a_change(small, tmp_path):
    lines = ["L2.H0 one-hot s0<-s2 s4<-s6", "L3.H0 uniform"]
    plain = ri.parse_circuit(lines, small.task)
    marked = Circuit(plain.mechanisms, 7, task=plain.task, unfinished="the search was cancelled")
    again = Circuit.from_json(marked.to_json(), 7)
    assert again == marked == plain and again.unfinished == "the search was cancelled"
    assert "unfinished" not in plain.to_json() and "unfinished" not in repr(plain)
    assert repr(marked).splitlines()[-1] == "unfinished: the search was cancelled"
    assert marked.replace(Head(3, 0), plain[Head(2, 0)]).unfinished == ""
    bench = ri.open("small", examples=16, progress=lambda items, what: items)
    (tmp_path / "circuit.json").write_text(marked.to_json())
    bench.load(tmp_path / "circuit.json")
    assert "Unfinished: the search was cancelled." in " ".join(bench.score(controls=0).text.split())
    page = bench.report(tmp_path / "report.html").read_text()
    assert "Unfinished: the search was cancelled." in page


def test_a_search_may_be_confined_to_some_heads(small):
    found = discover(
        small.model, small.task, examples=64, restarts=1, heads=[Head(1, 0), Head(3, 0)]
    )
    assert set(found.mechanisms) == {Head(1, 0), Head(3, 0)}
    assert {path.head for path in found.every_path()} <= set(found.mechanisms)
    for heads, said in (([Head(9, 0)], "L9.H0"), ([], "none")):
        expected = f"heads: expected one or more of L0.H0 to L4.H0, found {said}"
        with pytest.raises(InputError, match=expected):
            discover(small.model, small.task, examples=16, heads=heads)


def test_the_workbench_has_the_same_budget(monkeypatch):
    bench = ri.open("small", examples=32, progress=lambda items, what: items)
    asked = []

    def found(*arguments):
        asked.append(arguments[2:])
        return Circuit({}, 7)

    monkeypatch.setattr("retrieval_interp.bench.discover_circuit", found)
    bench.discover()
    bench.discover(time=60.0, heads=["L0.H0", Head(2, 0)], examples=16, restarts=1, one_hot=True)
    heads = [Head(0, 0), Head(2, 0)]
    assert asked == [
        (None, 32, 0, 4, True, None, None, None),  # each set of examples has its own tolerance
        (None, 16, 0, 1, False, 60.0, heads, None),
    ]
    with pytest.raises(InputError, match=r"expected a head from L0.H0 to L4.H0, found L7.H0"):
        bench.discover(heads=["L7.H0"])


def test_controls_are_twenty_and_as_many_as_asked_for():
    bench = ri.open("small", examples=8, progress=lambda items, what: items)
    bench.suppose("L2.H0 s0<-s2")
    assert len(bench.score().data.control) == 20
    three = bench.score(controls=3)
    assert len(three.data.control) == 3 and "of 3 random circuits" in three.text
    assert bench.score(controls=3).data is three.data  # not measured again
    with pytest.raises(InputError, match="controls: expected 0 random circuits or more, found -1"):
        bench.score(controls=-1)


# On a terminal


def test_the_line_of_a_search_fits_the_terminal():
    from retrieval_interp.commands.search_line import search_line

    with pytest.MonkeyPatch.context() as patch, terminal(80) as (file, text):
        patch.setattr(sys, "stderr", file)
        patch.setenv("COLUMNS", "80")
        patch.setattr("tqdm.std.time", itertools.count().__next__)  # a second passes at each look
        with search_line() as watch:
            for number in range(300):
                watch(SearchState("start 2 of 4: two changes at once", number, 12, 0.04))
    shown = lines_of(text[0])
    assert max(map(len, shown)) < 80 and any("best cost 12, loss 0.0400" in s for s in shown)


def test_every_command_that_loads_pytorch_says_so_first(monkeypatch):
    from retrieval_interp.commands.command import saying

    with terminal() as (file, text), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stderr", file)
        with saying("loading PyTorch"):
            pass
    assert text[0].startswith("loading PyTorch ...\r") and lines_of(text[0])[-1] == ""


def interrupted(command, when, cwd):
    """Run a command on a terminal and press Ctrl-C when it has shown a text; status, output."""
    import pty

    pid, end = pty.fork()
    if pid == 0:
        os.chdir(cwd)
        set_size(0, COLUMNS)
        os.execv(sys.executable, command)
    shown, pressed = b"", False
    while True:
        try:
            part = os.read(end, 4096)
        except OSError:
            break
        if not part:
            break
        shown += part
        if not pressed and when in shown:
            os.write(end, b"\x03")
            pressed = True
    os.close(end)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), shown.decode()


@pytest.mark.slow
def test_ctrl_c_on_a_terminal_gives_the_best_circuit_so_far(tmp_path):
    command = [sys.executable, "-m", "retrieval_interp", "ablate", "--examples", "64"]
    command += ["--save-circuit", "circuit.json", "--json", "numbers.json", "--controls", "2"]
    status, shown = interrupted(command, b"best cost", tmp_path)
    assert status == 0, shown
    text = " ".join(shown.split())
    assert shown.startswith("loading PyTorch")
    assert "Unfinished: the search was cancelled; a simpler circuit may exist" in text
    for name in ("circuit.json", "numbers.json"):
        data = json.loads((tmp_path / name).read_text())
        assert data["unfinished"].startswith("the search was cancelled")


def test_options_of_the_search_and_the_control_reach_them(run_command_in_process, tmp_path):
    options = ["--examples", 32, "--heads", "L1.H0", "L3.H0", "--restarts", 1, "--controls", 3]
    with warnings.catch_warnings():
        warnings.simplefilter("error", SearchStopped)
        done = run_command_in_process(
            "ablate", *options, "--one-hot", "--json", "numbers.json", cwd=tmp_path
        )
    assert done.returncode == 0, done.stderr
    data = json.loads((tmp_path / "numbers.json").read_text())
    kinds = {row["layer"]: row["mechanism"] for row in data["heads"]}
    assert {kinds[layer] for layer in (0, 2, 4)} == {"original"} and "original" not in kinds[1]
    for wrong, said in (
        (("--heads", "L7.H0"), "heads: expected one or more of L0.H0 to L4.H0, found L7"),
        (("--restarts", 0), "--restarts: expected at least 1, found 0"),
        (("--controls", -1), "--controls: expected 0 or more, found -1"),
        (("--circuit", "c.json", "--one-hot"), "--one-hot: expected a search, found --circuit"),
        (("--circuit", "c.json", "--time", 5), "--time: expected a search, found --circuit"),
    ):
        done = run_command_in_process("ablate", "--examples", 16, *wrong, cwd=tmp_path)
        assert done.returncode == 2 and said in done.stderr
