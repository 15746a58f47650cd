import asyncio
import json
from dataclasses import replace
from html import unescape

import pytest
import torch
from retrieval_interp.views.finding import finding

import retrieval_interp as ri
from retrieval_interp.circuits.discovery.watch import SearchStopped
from retrieval_interp.config.model_config import ModelConfig
from retrieval_interp.training.model import build_model


@pytest.fixture
def bench(model, task):
    return ri.open(model, task, examples=8, progress=lambda items, what: items)


@pytest.fixture
def explorer(bench):
    return bench.explore()


def ask(explorer, what, **more):
    explorer._answer(explorer, {"do": what, **more})


def test_a_click_makes_a_path_and_a_second_takes_it_away(explorer, bench):
    ask(explorer, "toggle", path="L1.H0 s0<-s2")
    assert str(explorer.circuit[1, 0]) == "one-hot s0<-s2"
    assert explorer.state["loss"] == bench.loss != bench.intact_loss
    assert explorer.state["heads"]["L1.H0"] == {"kind": "one-hot", "paths": [[0, 2]]}
    assert explorer.state["drawing"].count("marker-end") == 1 and explorer.state["undoable"]
    ask(explorer, "toggle", path="L1.H0 s0<-s2")
    assert explorer.circuit.mechanisms == {}
    assert explorer.state["loss"] == pytest.approx(bench.intact_loss, abs=1e-6)


class Named(ri.RepeatedTokensTask):
    role_names = ("query", "first", "answer")


def test_paths_have_the_tasks_own_names_everywhere(tmp_path):
    task = Named(length=4, alphabet=6)
    model = build_model(ModelConfig(layers=2, heads=1, d_model=8), task)
    bench = ri.open(model, task, examples=8, progress=lambda items, what: items)
    explorer, name = bench.explore(), "L1.H0 query<-answer"
    ask(explorer, "toggle", path=name)
    ask(explorer, "show", layer=1, head=0, example=0, with_circuit=False, path=name)
    assert explorer.model_info["roles"] == list(Named.role_names)
    assert explorer.shown["path"]["name"] == explorer.state["rows"][0]["name"] == name
    assert ' data-path="L1.H0 query&lt;-answer"' in explorer.state["drawing"]
    bench.suppose("L0.H0 answer<-first")
    page = unescape(bench.report(tmp_path / "report.html").read_text())
    assert page.count(f'data-path="{name}"') >= 3  # arrow, row, cell
    score = replace(bench.score().data, baseline_loss=0.01)  # as if the model had learned it
    said = finding(score, task, bench.batch, 2, 1)
    assert "L0.H0, a previous-token head, brings what is at “first A” to “B after it”." in said


def test_a_selected_path_says_what_it_is_worth(explorer, bench):
    path = "L1.H0 s0<-s2"
    ask(explorer, "show", layer=1, head=0, example=0, with_circuit=False, path=path)
    shown, empty = explorer.shown["path"], bench.scorer.empty_circuit
    cut = bench.loss_with(empty.cut(ri.parse_head_path(path, 5)))
    assert shown["live"] == pytest.approx(cut, abs=1e-6) and not shown["present"]
    assert shown["added"] == pytest.approx(bench.loss_with(path), abs=1e-6)
    assert shown["attention"] == pytest.approx(float(bench.intact_attention[1, 0, 0, 2]), abs=1e-4)
    ask(explorer, "suppose", line="L0.H0 uniform")
    ask(explorer, "toggle", path=path)
    shown = explorer.shown["path"]
    assert shown["present"] and shown["ablated"] == pytest.approx(bench.loss_with("L1.H0 one-hot"))
    assert explorer.state["rows"] == [shown]
    ask(explorer, "score")
    (row,) = bench.scored.paths
    assert explorer.state["rows"][0]["ablated"] == row.ablated_loss
    assert explorer.state["rows"][0]["live"] == pytest.approx(shown["live"], abs=1e-6)
    ask(explorer, "show", layer=0, head=0, example=0, with_circuit=False, path=path)
    assert explorer.state["failed"] and "one of the shown head L0.H0" in explorer.state["said"]
    ask(explorer, "show", layer=1, head=0, example=0, with_circuit=False, path="L1.H0 s2<-s0")
    assert "source before its destination" in explorer.shown["path"]["note"]


def test_a_scored_path_says_what_it_does_wherever_it_is_shown(model, task, monkeypatch):
    monkeypatch.setattr(type(task), "plateau", 10.0)  # random weights give less
    bench = ri.open(model, task, examples=8, tolerance=9.0, progress=lambda items, what: items)
    explorer, path = bench.explore(), "L1.H0 s0<-s2"
    ask(explorer, "toggle", path=path)
    ask(explorer, "show", layer=1, head=0, example=0, with_circuit=False, path=path)
    assert "does" not in explorer.shown["path"]
    ask(explorer, "score")
    assert explorer.shown["path"]["does"] == "the intact model does without it"
    assert explorer.state["rows"][0]["does"] == explorer.shown["path"]["does"]
    ask(explorer, "suppose", line="L0.H0 uniform")
    assert "does" not in explorer.shown["path"]


def test_the_mechanism_in_place_is_always_among_the_choices(explorer):
    ask(explorer, "suppose", line="L0.H0 one-hot s4<-s3")
    (chosen,) = [choice for choice in explorer.shown["choices"] if choice["chosen"]]
    assert chosen["line"] == "L0.H0 one-hot s4<-s3" and chosen["name"] == "one-hot, now"
    assert chosen["loss"] == pytest.approx(explorer.state["loss"], abs=1e-6)


def test_the_choices_are_worth_what_they_say(explorer, bench):
    ask(explorer, "show", layer=1, head=1, example=3, with_circuit=False)
    choices = explorer.shown["choices"]
    assert [choice["chosen"] for choice in choices].count(True) == 1
    assert {"original", "uniform", "identity", "role-mean"} <= {row["name"] for row in choices}
    for choice in choices:
        ask(explorer, "suppose", line=choice["line"])
        assert bench.loss == pytest.approx(choice["loss"], abs=1e-5), choice
        assert not explorer.state["failed"]


def test_the_example_shown_is_the_one_asked_for(explorer, bench):
    ask(explorer, "show", layer=2, head=1, example=5, with_circuit=False)
    shown = explorer.shown
    _, cache = bench.model.run_with_cache(bench.batch.inputs)
    expected = cache["blocks.2.attn.hook_pattern"][5, 1]
    torch.testing.assert_close(torch.tensor(shown["pattern"]) / 1000, expected, atol=5e-4, rtol=0)
    assert shown["chains"] == bench.batch.roles[5].tolist()
    assert shown["tokens"] == bench.task.position_labels(bench.batch, 5)
    by_role = ri.mean_attention(bench.model, bench.batch)
    torch.testing.assert_close(torch.tensor(shown["by_role"]) / 1000, by_role, atol=5e-4, rtol=0)
    ask(explorer, "suppose", line="L0.H0 uniform")
    ask(explorer, "show", layer=0, head=0, example=0, with_circuit=True)
    assert explorer.shown["pattern"][3][:4] == [250] * 4


def test_undo_clear_discover_and_save(explorer, bench, tmp_path):
    ask(explorer, "suppose", line="L0.H0 uniform")
    ask(explorer, "suppose", line="L1.H0 identity")
    ask(explorer, "undo")
    assert list(map(str, explorer.circuit.mechanisms)) == ["L0.H0"]
    ask(explorer, "save", path=str(tmp_path / "circuit.json"))
    assert ri.Circuit.from_json((tmp_path / "circuit.json").read_text(), 5) == explorer.circuit
    assert "saved to" in explorer.state["said"]
    ask(explorer, "clear")
    assert explorer.circuit.mechanisms == {} and explorer.state["undoable"]
    ask(explorer, "discover")  # an untrained model: nothing to find
    assert explorer.circuit.mechanisms == {} and explorer.state["busy"] == ""


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"do": "suppose", "line": "L9.H0 uniform"}, "expected a head from L0.H0 to L2.H1"),
        ({"do": "toggle", "path": "L0.H0 s2<-s0"}, "source before its destination"),
        ({"do": "show", "layer": 9, "head": 0, "example": 0, "with_circuit": False}, "L9.H0"),
        ({"do": "show", "layer": 0, "head": 0, "example": 99, "with_circuit": False}, "0 to 7"),
        ({"do": "save", "path": "/nowhere/to/be/found/c.json"}, "expected an existing folder"),
        ({"do": "undo"}, "expected a change to take back"),
        (
            {"do": "show", "layer": 0, "head": 0, "example": None, "with_circuit": False},
            "example: expected a whole number, found None",
        ),
        (
            {"do": "show", "layer": 0.0, "head": 0, "example": 0, "with_circuit": False},
            "layer: expected a whole number, found 0.0",
        ),
        (
            {"do": "show", "layer": 0, "head": False, "example": 0, "with_circuit": False},
            "head: expected a whole number, found False",
        ),
        ({"do": "discover", "time": "soon"}, "time: expected a number, found 'soon'"),
        ({"do": "discover", "heads": "L0.H0"}, "heads: expected a list, found 'L0.H0'"),
        ({"do": "score", "controls": 2.5}, "controls: expected a whole number, found 2.5"),
        ({"do": "suppose"}, "line: expected text, found None"),
        ({"do": "dance"}, "expected a known request, found 'dance'"),
    ],
)
def test_what_cannot_be_is_said_and_changes_nothing(explorer, asked, text):
    explorer._answer(explorer, asked)
    assert text in explorer.state["said"] and explorer.state["failed"]
    assert explorer.circuit.mechanisms == {} and not explorer.state["undoable"]
    ask(explorer, "suppose", line="L0.H0 uniform")
    assert not explorer.state["failed"]


def test_what_the_workbench_changes_is_shown(explorer, bench):
    other = bench.explore()
    bench.suppose("L0.H0 uniform")
    for shown in (explorer, other):
        assert shown.state["replaced"] == 1 and shown.state["loss"] == bench.loss
    ask(other, "undo")
    assert explorer.state["replaced"] == 0


def test_paths_of_a_cut_head_are_not_shown_as_the_circuits(explorer, bench):
    bench.suppose("L1.H0 cut s2<-s1")
    assert explorer.state["heads"]["L1.H0"] == {"kind": "cut", "paths": []}


def test_what_is_sent_is_json(explorer, bench, monkeypatch):
    monkeypatch.setattr(type(bench), "loss_with", lambda self, *lines: float("inf"))
    ask(explorer, "show", layer=0, head=1, example=0, with_circuit=False)  # not shown yet
    json.dumps([explorer.state, explorer.shown, explorer.model_info], allow_nan=False)
    assert explorer.shown["choices"][0]["loss"] is None


def test_frontends_without_widgets_get_the_static_view(explorer):
    bundle = explorer._repr_mimebundle_()
    data = bundle[0] if isinstance(bundle, tuple) else bundle
    assert "application/vnd.jupyter.widget-view+json" in data
    assert "<svg" in data["text/html"] and "explorer of" in data["text/plain"]


# Searching


@pytest.fixture
def searchable(monkeypatch):
    """An explorer of the shipped model that says at every score where a search is."""
    monkeypatch.setattr("retrieval_interp.explorer.state._TELLING", -1)
    bench = ri.open("small", examples=32, progress=lambda items, what: items)
    return bench.explore()


def test_a_cancelled_search_gives_the_best_circuit_so_far(searchable):
    exploring, texts = searchable.exploring, []

    def publish(name, value):
        if name == "state" and "best cost" in value["busy"]:
            texts.append(value["busy"])
            exploring.cancel()

    exploring.publish = publish
    with pytest.warns(SearchStopped, match="the search was cancelled"):
        exploring.answer({"do": "discover"})
    assert len(texts) == 1 and texts[0].startswith("start 1 of 4: ")
    assert exploring.state["said"].startswith("unfinished: the search was cancelled")
    assert exploring.circuit.mechanisms and exploring.circuit.unfinished
    assert exploring.state["busy"] == "" and exploring.state["undoable"]
    exploring.cancel()  # of nothing: the next search is not cancelled by it
    exploring.publish = lambda name, value: None
    few = {"restarts": 1, "time": 1000, "examples": 16, "heads": ["L1.H0", "L3.H0"]}
    exploring.answer({"do": "discover", **few})
    assert exploring.circuit.unfinished == ""


def test_a_search_that_is_cancelled_at_once_changes_nothing(searchable):
    exploring = searchable.exploring
    exploring.publish = lambda name, value: exploring.cancel()
    exploring.answer({"do": "discover"})
    assert exploring.state["said"] == "cancelled before any circuit held; nothing changed"
    assert exploring.circuit.mechanisms == {} and not exploring.state["failed"]


def test_messages_are_answered_while_a_notebook_searches(searchable):
    """A notebook has an event loop. The search has a copy of the model, which others may use."""
    bench = searchable.exploring.bench
    seen = []

    async def becomes(condition):
        while not condition():
            await asyncio.sleep(0.01)

    async def work():
        ask(searchable, "discover")
        assert not searchable.circuit.mechanisms  # asked, and not yet done
        await asyncio.wait_for(becomes(lambda: "best cost" in searchable.state["busy"]), 300)
        ask(searchable, "show", layer=2, head=0, example=3, with_circuit=False)
        seen.append(searchable.shown["pattern"])
        ask(searchable, "cancel")
        await asyncio.wait_for(becomes(lambda: not searchable.exploring._searching), 300)
        await asyncio.wait_for(becomes(lambda: searchable.circuit.mechanisms), 300)

    with pytest.warns(SearchStopped, match="the search was cancelled"):
        asyncio.run(work())
    assert searchable.state["said"].startswith("unfinished: the search was cancelled")
    _, cache = bench.model.run_with_cache(bench.batch.inputs)
    expected = cache["blocks.2.attn.hook_pattern"][3, 0]
    torch.testing.assert_close(torch.tensor(seen[0]) / 1000, expected, atol=5e-4, rtol=0)


def test_what_bounds_a_search_and_a_score_reaches_them(explorer, bench, monkeypatch):
    asked = []
    monkeypatch.setattr(type(bench), "searched", lambda *_, **options: asked.append(options))
    monkeypatch.setattr(
        type(bench), "score", lambda *given, **_: asked.append({"controls": given[1]})
    )
    bounds = {"time": 5, "heads": ["L0.H0"], "examples": 16, "restarts": 2, "one_hot": True}
    ask(explorer, "discover", **bounds)
    ask(explorer, "score", controls=3)
    ask(explorer, "score")
    assert asked[0].pop("watch")
    assert asked == [{**bounds, "time": 5.0}, {"controls": 3}, {"controls": 20}]
