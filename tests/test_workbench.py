"""The workbench: what is supposed is measured exactly, and what cannot be is refused."""

import re
from urllib.parse import unquote

import pytest
import torch

import retrieval_interp as ri
from retrieval_interp.circuits.circuit import suppose
from retrieval_interp.circuits.mechanisms import IDENTITY
from retrieval_interp.circuits.role_runs import RoleRuns


def test_what_is_supposed_is_measured_exactly(bench):
    lines = ["L1.H0 s0<-s2", "L1.H0 s0<-s4", "L2.H1 uniform", "L0.H1 one-hot s2<-s1 s4<-s3"]
    for line in [*lines, "L0.H0 role-mean", "L2.H0 mean", "L2.H1 original"]:
        asked = bench.loss_with(line)
        view = bench.suppose(line)
        assert view.data == bench.loss == pytest.approx(asked, abs=1e-6)
        shown, error = re.search(r"MSE (\S+) \+- (\S+)", repr(view)).groups()
        assert abs(float(shown) - bench.loss) < float(error) and f"MSE {shown}" in view.html
    assert str(bench.circuit[1, 0]) == "shared s0<-s2 s0<-s4"
    with torch.no_grad():
        intact = float(bench.task.loss(bench.model(bench.batch.inputs), bench.batch))
    assert bench.intact_loss == pytest.approx(intact, abs=1e-5)


def test_asking_for_a_loss_and_parsing_lines_change_nothing(bench):
    scorer, before = bench.scorer, bench.loss_with("L0.H0 uniform")
    assert bench.parse("L0.H0 uniform", "L1.H0 s0<-s2").mechanisms.keys() == {(0, 0), (1, 0)}
    assert bench.circuit.mechanisms == {}
    asked = bench.loss_with("L1.H0 counterfactual")
    assert bench.scorer is scorer and bench.batch.counterfactual_activations is None
    assert bench.suppose("L1.H0 counterfactual").data == pytest.approx(asked, abs=1e-6)
    assert bench.batch.counterfactual_activations is not None
    bench.undo()  # and runs are as fast as before
    assert bench.batch.counterfactual_activations is None
    assert bench.loss_with("L0.H0 uniform") == pytest.approx(before, abs=1e-6)


@pytest.mark.slow
def test_examples_and_seed_are_the_benchs():
    bench = ri.open("small", examples=16, seed=3)
    bench.suppose("L4.H0 s0<-s4")
    asked = bench.model, bench.task
    found = bench.alternatives(time=600.0).data
    expected = ri.alternatives(*asked, bench.circuit, examples=16, seed=3, time=600.0)
    assert found.circuits[bench.circuit] == expected.circuits[bench.circuit]
    how = {"examples": 8, "upto": "heads", "controls": 0}
    assert bench.why(**how).data.intact == ri.why(*asked, seed=3, **how).intact


def test_changes_are_taken_back_one_by_one_and_circuits_kept(bench, tmp_path):
    first = bench.circuit
    bench.suppose("L1.H0 s0<-s2", "L1.H0 s0<-s4", "L2.H0 identity")
    second, loss = bench.circuit, bench.loss
    assert second[2, 0] == IDENTITY
    bench.remove("L1.H0 s0<-s4")
    assert str(bench.circuit[1, 0]) == "one-hot s0<-s2"
    bench.remove("L1.H0 s0<-s2")
    assert bench.circuit[1, 0].kind == "original"
    bench.undo()
    assert "L1.H0: one-hot s0<-s2 -> shared s0<-s2 s0<-s4" in repr(bench.undo())
    assert bench.circuit == second and bench.loss == loss
    assert "nothing changed" in repr(bench.suppose("L2.H0 identity"))
    kept = bench.save(tmp_path / "circuit.json")
    bench.undo()
    assert bench.circuit == first and not bench.undoable
    assert bench.load(kept).data == pytest.approx(loss, abs=1e-6) and bench.circuit == second


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("L0.H0", "expected a head and what it does, .* L1.H0 one-hot, without paths, for a head"),
        ("L0.H0 role-mean", "role-mean: expected no paths, and a workbench, which measures it"),
        ("L0.H0 uniform s2<-s1", "uniform: expected no paths, found s2<-s1"),
        ("L0.H0 onehot s2<-s1", "expected one-hot, or a path"),
        ("L0.H0 zero", "expected original, cut, uniform, .* or a path such as s0<-s2, found"),
    ],
)
def test_lines_that_say_nothing_are_refused(line, text):
    with pytest.raises(ri.InputError, match=text):
        suppose(ri.Circuit({}, 7), line)


@pytest.mark.parametrize(
    ("act", "text"),
    [
        (lambda bench: bench.suppose("L1.H1 identity", "L9.H0 uniform"), "found L9.H0"),
        (lambda bench: bench.remove("L1.H0 s0<-s2"), "expected a path of the circuit"),
        (lambda bench: ri.attribute(bench.model, bench.task, 3), "an ri.Batch, found int"),
        (lambda bench: bench.undo(), "undo"),
        (lambda bench: bench.ask("store"), "ask: expected a prompt"),
        (
            lambda bench: bench.ablations(least_attention="x"),
            "least_attention: expected a number, found 'x'",
        ),
        (lambda bench: ri.open(bench.model), "a hooked model and a task"),
        (lambda bench: ri.open("small", bench.task), "expected none for a checkpoint"),
        (lambda bench: ri.open(bench.model, ri.RetrievalTask(chains=3, steps=3, dim=4)), "model"),
    ],
)
def test_what_is_not_there_is_refused_and_changes_nothing(bench, act, text, without_type_checks):
    with pytest.raises(ri.InputError, match=text):
        act(bench)
    assert bench.circuit.mechanisms == {} and not bench.undoable


def test_with_nothing_supposed_the_intact_model_is_scored(bench):
    view = bench.score()
    assert "Nothing is supposed yet" in repr(view)
    assert view.data.combined_loss == view.data.intact_loss == pytest.approx(bench.loss, abs=1e-6)


def test_the_papers_numbers_stand_beside_those_of_its_own_task_only(tmp_path):
    bench = ri.open("small", examples=16)
    bench.suppose("L4.H0 s0<-s4")
    view = bench.score()
    assert "paper: 0.17 to 0.89" in " ".join(repr(view).split())
    page = bench.report(tmp_path / "report.html").read_text()
    (command,) = re.findall(r">(bench = ri\.open.*?)<", page)
    circuit = unquote(re.search(r"data:application/json,([^\"]*)", page)[1])
    assert "tolerance" not in command and ri.Circuit.from_json(circuit, 7) == bench.circuit
    assert "paper: below 0.05" in page and "paper" not in ri.verdict(view.data, ri.EquationsTask())
    assert "Mechanism and Emergence of Stacked Attention Heads" in page


def test_a_model_on_another_device_is_refused(task, config):
    elsewhere = ri.build_model(config, task).to("meta", print_details=False)
    with pytest.raises(ri.InputError, match="found it on cpu"):
        ri.score_circuit(elsewhere, task, ri.Circuit({}, 5), task.sample(4))


def test_a_changed_model_is_not_measured_with_what_was_kept(bench):
    bench.suppose("L0.H0 uniform")
    hook = ("blocks.1.attn.hook_z", lambda z, hook: 2 * z)
    with bench.model.hooks(fwd_hooks=[hook]):
        with pytest.raises(ri.InputError, match="open it again"):
            bench.suppose("L1.H0 uniform")
    bench.suppose("L1.H0 uniform")
    with torch.no_grad():
        bench.model.blocks[2].attn.W_O.mul_(0.5)
    for ask in (bench.score, lambda: bench.loss_with("L2.H0 uniform")):
        with pytest.raises(ri.InputError, match="open it again"):
            ask()


def test_an_interrupted_change_leaves_the_last_one(bench, monkeypatch):
    """Ctrl-C in the middle of a run must not leave half of it behind."""
    bench.suppose("L2.H0 s0<-s4")
    before, loss, expected = bench.circuit, bench.loss, bench.loss_with("L1.H0 uniform")
    bench.loss_with("L0.H0 uniform")  # the last run need not be run again

    def interrupted(self, *given):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(RoleRuns, "_layer", interrupted)
        for change in (lambda: bench.suppose("L1.H0 uniform"), bench.undo):
            with pytest.raises(KeyboardInterrupt):
                change()
    assert (bench.circuit, bench.loss) == (before, loss)
    assert bench.suppose("L1.H0 uniform").data == pytest.approx(expected, abs=1e-6)
