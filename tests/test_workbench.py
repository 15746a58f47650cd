import json
import sys
from html import unescape

import pytest
import torch
from retrieval_interp.bench.workbench import Workbench

import retrieval_interp as ri
from retrieval_interp.circuits.mechanisms import IDENTITY, UNIFORM
from retrieval_interp.reproduce.paper import paper_reports
from retrieval_interp.tasks import InputError
from retrieval_interp.training.model import build_model
from retrieval_interp.views.report import render_report
from retrieval_interp.views.score_text import Reported


@pytest.fixture
def bench(model, task):
    return ri.open(model, task, examples=8, progress=lambda items, what: items)


@pytest.fixture(scope="module")
def small():
    return ri.open("small", examples=64, progress=lambda items, what: items)


def naive_loss(bench, circuit):
    """A whole run with hooks."""
    with torch.no_grad(), ri.ablated(bench.model, circuit, bench.batch):
        return float(bench.task.loss(bench.model(bench.batch.inputs), bench.batch))


def test_what_is_supposed_is_measured_exactly(bench):
    intact = naive_loss(bench, ri.Circuit({}, 5))
    assert bench.loss == pytest.approx(intact, abs=1e-5)
    lines = ["L1.H0 s0<-s2", "L1.H0 s0<-s4", "L2.H1 uniform", "L0.H1 one-hot s2<-s1 s4<-s3"]
    for number, line in enumerate([*lines, "L0.H0 role-mean", "L2.H1 original"], start=1):
        view = bench.suppose(line)
        assert view.data == bench.loss
        assert bench.loss == pytest.approx(naive_loss(bench, bench.circuit), abs=1e-5)
        assert f"{bench.loss:.4f}" in repr(view) and f"{bench.loss:.4f}" in view.html
        assert len(bench._steps) == number + 1
    assert str(bench.circuit[1, 0]) == "shared s0<-s2 s0<-s4"
    assert bench.intact_loss == pytest.approx(intact, abs=1e-5)
    before = bench.circuit
    asked = bench.loss_with("L2.H0 uniform")
    assert bench.circuit == before and bench.suppose("L2.H0 uniform").data == pytest.approx(
        asked, abs=1e-6
    )


def test_changes_are_taken_back_one_by_one(bench):
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
    bench.undo()
    assert bench.circuit == first and not bench.undoable
    with pytest.raises(InputError, match="undo: expected a change to take back, found none"):
        bench.undo()


def test_supposing_the_same_again_changes_nothing(bench):
    bench.suppose("L1.H0 uniform")
    assert "nothing changed" in repr(bench.suppose("L1.H0 uniform"))
    bench.undo()
    assert not bench.undoable


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("L9.H0 uniform", r"expected a head from L0\.H0 to L2\.H1, found L9\.H0"),
        ("L0.H7 s2<-s1", r"expected a head from L0\.H0 to L2\.H1, found L0\.H7"),
        ("L0.H7 role-mean", r"expected a head from L0\.H0 to L2\.H1, found L0\.H7"),
        ("L0.H0 s0<-s9", "expected a role from s0 to s4, found 's9'"),
        ("L0.H0 s2<-s0", "L0.H0: expected a source before its destination"),
        ("L0.H0 sideways", "expected a line such as"),
    ],
)
def test_what_is_not_there_is_refused_and_changes_nothing(bench, line, text):
    bench.suppose("L1.H0 uniform")
    before = bench.circuit
    with pytest.raises(InputError, match=text):
        bench.suppose("L1.H1 identity", line)
    assert bench.circuit == before
    with pytest.raises(InputError, match=r"expected a path of the circuit \(none\)"):
        bench.remove("L1.H0 s0<-s2")
    wrong = ri.Circuit({}, 5).replace((0, 0), ri.mechanisms.OneHot((ri.RolePath(2, 0),)))
    with pytest.raises(InputError, match="source before its destination"):
        bench.suppose(wrong)
    assert bench.circuit == before


def test_attention_and_roles_are_the_models(bench):
    view = bench.attention(layer=1, examples=[2, 5])
    _, cache = bench.model.run_with_cache(bench.batch.inputs)
    torch.testing.assert_close(view.data, cache["blocks.1.attn.hook_pattern"][[2, 5]])
    torch.testing.assert_close(
        bench.roles().data, ri.mean_attention(bench.model, bench.batch), atol=1e-6, rtol=0
    )
    bench.suppose("L0.H0 uniform")
    first = bench.attention(layer=0, examples=3, with_circuit=True).data[0, 0]
    torch.testing.assert_close(first[4, :5], torch.full((5,), 0.2))
    there = bench.roles(with_circuit=True)
    assert "with the circuit in place" in repr(there)
    assert not torch.allclose(there.data[1], bench.roles().data[1])


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"layer": 3}, "layer: expected 0 to 2, found 3"),
        ({"layer": -1}, "layer: expected 0 to 2, found -1"),
        ({"examples": 8}, "example: expected 0 to 7, found 8"),
        ({"examples": [0, 99]}, "example: expected 0 to 7, found 99"),
        ({"examples": []}, "example: expected at least one, found none"),
    ],
)
def test_layers_and_examples_that_are_not_there_are_refused(bench, arguments, text):
    with pytest.raises(InputError, match=text):
        bench.attention(**arguments)


def test_with_nothing_supposed_the_intact_model_is_scored(bench):
    view = bench.score()
    assert "Nothing is supposed yet" in repr(view) and "Nothing is supposed yet" in view.html
    assert view.data.combined_loss == view.data.baseline_loss
    assert view.data.baseline_loss == pytest.approx(bench.loss, abs=1e-6)


@pytest.mark.slow
def test_the_shipped_model_from_the_first_look_to_the_report(small, tmp_path, capsys):
    assert "s0<-s2 0.89" in repr(small.roles())
    assert "A1? -> B1" in repr(small.attention(2, 0))
    found = small.discover()
    assert found.data == small.loss < 0.05
    view = small.score()
    assert view.data.sufficient and "Sufficient" in repr(view) and "verdict" in view.html
    assert small.score().data is view.data  # nothing is computed twice
    path = small.save(tmp_path / "circuit.json")
    kept = small.circuit
    small.suppose(ri.Circuit({}, 7))
    assert small.load(path).data == pytest.approx(found.data, abs=1e-6) and small.circuit == kept
    page = small.report(tmp_path / "report.html").read_text()
    assert (
        f"{view.data.combined_loss:.4f}" in page
        and "ri.open(&#39;small&#39;, examples=64, seed=0, tolerance=0.05)" in page
    )
    assert "L4   H0 one-hot" in repr(small) and "<svg" in small._repr_html_()
    printed = capsys.readouterr()
    assert printed.out == printed.err == ""


def test_the_control_is_of_the_same_examples(small):
    """The report's numbers are those of the command on the same examples."""
    score = small.score().data
    batch = small.task.sample(64, split="test")
    again = ri.score_circuit(small.model, small.task, small.circuit, batch)
    assert again.combined_loss == pytest.approx(score.combined_loss, abs=1e-6)
    page = render_report(again, small.model, small.task, name="x", seed=0, command="y")
    assert "trained" not in page


def test_the_report_shows_what_was_measured_and_measures_no_more(bench, tmp_path, monkeypatch):
    bench.suppose("L1.H0 s0<-s2")
    score, drawn = bench.score().data, bench.roles()

    def again(*arguments, **more):
        raise AssertionError("measured again")

    monkeypatch.setattr("retrieval_interp.views.report.mean_attention", again)
    monkeypatch.setattr(type(bench.task), "sample", again)
    page = bench.report(tmp_path / "report.html").read_text()
    assert f"{score.combined_loss:.4f}" in page
    about = f"{bench.task.path_label(4, 3)}: {float(drawn.data[0, 1, 4, 3]):.3f}"
    assert f'<td title="{about}" style="--w:' in unescape(page)


def test_the_papers_numbers_stand_beside_those_of_its_own_task_only(small, bench, tmp_path):
    small.suppose(ri.Circuit({}, 7))
    small.suppose("L4.H0 s0<-s4")
    view = small.score()
    words = " ".join(repr(view).split())
    assert "; paper: below 0.05)" in words
    assert "(paper: 0.17 to 0.89 per path, 0.05 to 0.1 in the first useful layer)" in words
    beside = "the paper reports a loss below 0.05 with all heads replaced, and, with one path"
    for html in (view.html, small.report(tmp_path / "report.html").read_text()):
        verdict = html.partition('class="verdict')[2].partition("</p>")[0]
        assert "intact" in verdict and "paper" not in verdict  # ours stand alone
        assert beside in " ".join(html.split())
    page = small.report(tmp_path / "report.html").read_text()
    assert "Mechanism and Emergence of Stacked Attention Heads" in page
    assert "paper" not in ri.verdict(view.data, small.task)  # which nobody told
    reported = Reported("Someone, somewhere", "they", "a lot", "more")
    assert "; they: a lot)" in ri.verdict(view.data, small.task, reported)
    assert paper_reports(ri.EquationsTask()) == Reported("")
    units = paper_reports(ri.RetrievalTask(tokens="unit"))
    assert units.citation and not units.combined  # whose losses are on another scale


def test_an_own_model_is_called_by_its_configuration_or_its_task(model, task, bench, tmp_path):
    """Not by its class, which says nothing."""
    assert ri.open(model, task, examples=8).name == "RetrievalTask model"
    page = bench.report(tmp_path / "report.html").read_text()
    assert "<h1>Circuit of RetrievalTask model</h1>" in page
    model.cfg.model_name = "attn-only-2l"
    assert ri.open(model, task, examples=8).name == "attn-only-2l"


def test_tables_are_text_in_a_notebook_too(bench, monkeypatch, capsys):
    """Where rich finds itself in a notebook it displays, unless it is told to write."""
    table = ri.score_table(bench.score().data, bench.task)
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    assert ri.score_table(bench.score().data, bench.task) == table
    assert "baseline MSE" in table and "L0.H0" not in capsys.readouterr().out


def test_a_model_needs_a_task_and_a_checkpoint_has_its_own(model, task):
    with pytest.raises(InputError, match=r"VectorTransformer\): ri.open\(model, task\)"):
        ri.open(model)
    with pytest.raises(InputError, match="expected none for a checkpoint"):
        ri.open("small", task)
    with pytest.raises(InputError, match="nothing-of-this-name"):
        ri.open("nothing-of-this-name")
    with pytest.raises(InputError, match="examples: expected 2 to 1000000, found 1"):
        ri.open(model, task, examples=1)
    with pytest.raises(InputError, match="tolerance: expected a number above 0, found 0"):
        ri.open(model, task, tolerance=0.0)
    other = ri.RetrievalTask(chains=3, steps=3, dim=4)
    with pytest.raises(InputError, match="expected a model with 8 inputs and 12 outputs"):
        ri.open(model, other)


def test_a_model_on_another_device_is_refused(task, config):
    model = build_model(config, task)
    batch = task.sample(4)
    elsewhere = model.to("meta", print_details=False)
    with pytest.raises(InputError, match=r"model's device, meta, found it on cpu; use batch\.to"):
        ri.attention_view(elsewhere, task, batch)
    with pytest.raises(InputError, match="found it on cpu"):
        ri.score_circuit(elsewhere, task, ri.Circuit({}, 5), batch)


def test_files_that_cannot_be_written_are_refused_first(bench, tmp_path):
    for write in (bench.save, bench.report, bench.roles().save_html):
        with pytest.raises(InputError, match="expected an existing folder"):
            write(tmp_path / "missing" / "file")


def test_without_widgets_there_is_a_static_view(bench, monkeypatch):
    monkeypatch.setitem(sys.modules, "anywidget", None)
    monkeypatch.delitem(sys.modules, "retrieval_interp.explorer.widget", raising=False)
    view = bench.explore()
    assert isinstance(view, ri.View)
    assert "needs anywidget, which is not installed: pip install" in repr(view)
    assert "needs anywidget" in view.html and "<svg" in view.html


def test_original_everywhere_changes_nothing(bench):
    lines = [f"{head} original" for head in bench.heads]
    bench.suppose("L0.H0 uniform")
    assert bench.circuit[0, 0] == UNIFORM
    bench.suppose(*lines)
    assert bench.circuit.mechanisms == {}
    assert bench.loss == pytest.approx(bench.intact_loss, abs=1e-6)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"examples": True}, "examples: expected 2 to 1000000, found True"),
        ({"seed": -1}, "seed: expected 0 to"),
        ({"tolerance": float("nan")}, "tolerance: expected a number above 0, found nan"),
        ({"tolerance": float("inf")}, "tolerance: expected a number above 0, found inf"),
    ],
)
def test_other_numbers_are_refused(model, task, arguments, text):
    with pytest.raises(InputError, match=text):
        Workbench(
            model,
            task,
            "x",
            {},
            progress=lambda items, what: items,
            **{"examples": 8, "seed": 0, "tolerance": 0.05, **arguments},
        )


def test_a_changed_model_is_not_measured_with_what_was_kept(bench):
    bench.suppose("L0.H0 uniform")
    hook = ("blocks.1.attn.hook_z", lambda z, hook: 2 * z)
    with bench.model.hooks(fwd_hooks=[hook]):
        with pytest.raises(InputError, match="found other weights or hooks; open it again"):
            bench.suppose("L1.H0 uniform")
    bench.suppose("L1.H0 uniform")
    with torch.no_grad():
        bench.model.blocks[2].attn.W_O.mul_(0.5)
    for ask in (bench.score, lambda: bench.loss_with("L2.H0 uniform")):
        with pytest.raises(InputError, match="found other weights or hooks; open it again"):
            ask()


def test_another_tolerance_is_scored_anew(bench):
    assert bench.score().data.tolerance == 0.05
    bench.tolerance = 5.0
    assert bench.score().data.tolerance == 5.0


def test_an_interrupted_change_leaves_the_last_one(small, monkeypatch):
    """Ctrl-C in the middle of a run must not leave half of it behind."""
    from retrieval_interp.circuits.runs.role_runs import RoleRuns

    small.suppose(ri.Circuit({}, 7))
    small.suppose("L4.H0 s0<-s4")
    before, loss, expected = small.circuit, small.loss, small.loss_with("L2.H0 uniform")
    small.loss_with("L0.H0 uniform")  # the last run need not be run again

    def interrupted(self, residual):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(RoleRuns, "_read_out", interrupted)
        for change in (lambda: small.suppose("L2.H0 uniform"), small.undo):
            with pytest.raises(KeyboardInterrupt):
                change()
    assert (small.circuit, small.loss) == (before, loss)
    assert small.suppose("L2.H0 uniform").data == pytest.approx(expected, abs=1e-6)


def test_circuits_of_other_tasks_are_not_loaded(bench, tmp_path):
    path = tmp_path / "circuit.json"
    for task, text in (
        ({"name": "sorting", "steps": 2}, "expected a circuit for the task 'retrieval'"),
        ({"name": "retrieval", "steps": 9}, "for chains of 2 steps"),
    ):
        path.write_text(json.dumps({"heads": [], "task": task}))
        with pytest.raises(InputError, match=text):
            bench.load(path)
    path.write_text(json.dumps({"heads": [], "enabling": ["L1.H0 s4<-s0"]}))
    with pytest.raises(InputError, match="source before its destination"):
        bench.load(path)
    with pytest.raises(InputError, match="expected one for the task's 5 roles, found one for 3"):
        bench.suppose(ri.Circuit({}, 3))


def test_an_untrained_model_has_no_circuit_and_the_view_says_so(bench):
    assert "the model has not learned the task" in repr(bench.discover())


def test_layers_can_be_looked_at_one_by_one(bench):
    view = bench.roles(layer=2)
    assert view.data.shape == (1, 2, 5, 5)
    assert "L2.H1" in repr(view) and "L2.H0" in view.html and "L0.H0" not in view.html
    with pytest.raises(InputError, match="layer: expected 0 to 2, found 3"):
        bench.roles(layer=3)
