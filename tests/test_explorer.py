"""What the explorer's page shows and does, without a browser."""

import asyncio
import sys

import pytest
import torch

import retrieval_interp as ri
from retrieval_interp.tasks import InputError


@pytest.fixture
def bench(model, task):
    return ri.open(model, task, examples=8, progress=lambda items, what: items)


@pytest.fixture
def page(bench):
    return bench.explore().exploring


def ask(page, what, **more):
    page.answer({"do": what, **more})


def test_a_click_makes_a_path_and_a_second_takes_it_away(page, bench):
    ask(page, "toggle", path="L1.H0 s0<-s2")
    assert str(bench.circuit[1, 0]) == "one-hot s0<-s2"
    assert page.page["drawing"].count("marker-end") == 1
    assert bench.loss != bench.intact_loss and f"{bench.loss:.4f}" in page.html
    ask(page, "toggle", path="L1.H0 s0<-s2")
    assert bench.circuit.mechanisms == {} and bench.loss == bench.intact_loss
    ask(page, "undo")
    assert str(bench.circuit[1, 0]) == "one-hot s0<-s2"
    ask(page, "clear")
    assert bench.circuit.mechanisms == {}


def test_a_selected_path_says_what_it_is_worth(page, bench):
    path = "L1.H0 s0<-s2"
    ask(page, "show", path=path)
    row, empty = page.page["row"], bench.scorer.empty_circuit
    cut = bench.loss_with(empty.cut(ri.parse_head_path(path, 5)))
    assert row["live_loss"] == pytest.approx(cut, abs=1e-6) and not page.page["inside"]
    assert row["added_loss"] == pytest.approx(bench.loss_with(path), abs=1e-6)
    assert row["attention"] == pytest.approx(float(bench.intact_attention[1, 0, 0, 2]), abs=1e-4)
    ask(page, "suppose", line="L0.H0 uniform")
    ask(page, "toggle", path=path)
    row = page.page["row"]
    assert page.page["inside"]
    assert row["ablated_loss"] == pytest.approx(bench.loss_with("L1.H0 one-hot"))
    ask(page, "score")
    (scored,) = bench.scored.paths
    assert page.page["rows"][0]["ablated_loss"] == scored.ablated_loss
    assert page.page["rows"][0]["live_loss"] == pytest.approx(row["live_loss"], abs=1e-6)
    ask(page, "show", path="L1.H0 s2<-s0")
    assert "source before its destination" in page.page["row"]["hidden"]


def test_the_choices_are_worth_what_they_say(page, bench):
    ask(page, "suppose", line="L1.H1 one-hot s4<-s3")
    ask(page, "show", head="L1.H1", example=3)
    choices = page.page["choices"]
    (chosen,) = [choice for choice in choices if choice["chosen"]]
    assert chosen["line"] == "L1.H1 one-hot s4<-s3" and chosen["name"] == "one-hot, now"
    assert {"original", "uniform", "identity", "role-mean"} <= {row["name"] for row in choices}
    for choice in choices:
        ask(page, "suppose", line=choice["line"])
        assert bench.loss == pytest.approx(choice["loss"], abs=1e-5), choice
        assert not page.page["failed"]


def weights(map):
    return torch.tensor([[cell["weight"] for cell in row] for row in map["rows"]])


def test_the_example_shown_is_the_one_asked_for(page, bench):
    ask(page, "show", head="L2.H1", example=5)
    look, (_, cache) = page.page["look"], bench.model.run_with_cache(bench.batch.inputs)
    torch.testing.assert_close(weights(look), cache["blocks.2.attn.hook_pattern"][5, 1])
    assert [one["name"] for one in look["tokens"]] == bench.task.position_labels(bench.batch, 5)
    by_role = bench.roles().data
    for head, shown in zip(bench.heads, page.page["maps"]):
        ordered = by_role[head][bench.order][:, bench.order]
        torch.testing.assert_close(weights(shown), ordered, atol=6e-4, rtol=0)
    ask(page, "suppose", line="L0.H0 uniform")
    ask(page, "show", head="L0.H0", with_circuit=True)
    assert weights(page.page["look"])[3, :4].tolist() == [0.25] * 4


def test_paths_are_framed_where_they_put_attention(page, bench):
    bench.suppose("L0.H0 s4<-s3", "L0.H0 s0<-s2")
    ask(page, "show", path="L0.H0 s4<-s3")

    def cells(name):  # of the pattern that a circuit of this path alone has
        circuit = ri.parse_circuit([f"L0.H0 one-hot {name}"], bench.task)
        with ri.ablated(bench.model, circuit, bench.batch[:1]):
            _, cache = bench.model.run_with_cache(bench.batch.inputs[:1])
        return set(map(tuple, cache["pattern", 0][0, 0].nonzero().tolist()))

    found = {
        (at, source): cell["path"]
        for at, row in enumerate(page.page["look"]["rows"])
        for source, cell in enumerate(row)
        if cell["framed"]
    }
    for name in ("s4<-s3", "s0<-s2"):
        assert {at for at, path in found.items() if path == f"L0.H0 {name}"} == cells(name)


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"do": "show", "head": "L9.H0"}, "L9.H0"),
        ({"do": "show", "example": 99}, "0 to 7"),
        ({"do": "suppose", "line": "L0.H0 dance"}, "expected a line such as"),
        ({"do": "undo"}, "expected a change to take back"),
        ({"do": "dance"}, "dance"),
    ],
)
def test_what_cannot_be_is_said_and_changes_nothing(page, bench, asked, text):
    page.answer(asked)
    assert text in page.page["said"] and page.page["failed"]
    assert bench.circuit.mechanisms == {} and not bench.undoable
    ask(page, "suppose", line="L0.H0 uniform")
    assert not page.page["failed"]


def test_what_the_workbench_changes_is_shown_in_every_widget(bench):
    widgets = bench.explore(), bench.explore()
    bench.suppose("L0.H0 uniform")
    for widget in widgets:
        assert f"{bench.loss:.4f}" in widget.page and "1 of 6 heads" in widget.page
    widgets[1]._answer(None, {"do": "undo"})
    assert "0 of 6 heads" in widgets[0].page
    bench.suppose("L1.H0 cut s2<-s1")
    ((_, cut),) = [(at, row) for at, row in enumerate(widgets[0].exploring.page["maps"])
                   if row["head"] == "L1.H0"]  # fmt: skip
    assert cut["kind"] == "cut" and not any(cell["framed"] for row in cut["rows"] for cell in row)


def test_without_widgets_it_says_what_to_install(bench, monkeypatch):
    monkeypatch.setitem(sys.modules, "anywidget", None)
    monkeypatch.delitem(sys.modules, "retrieval_interp.explorer.widget", raising=False)
    with pytest.raises(InputError, match="pip install"):
        bench.explore()


# Searching


@pytest.fixture
def searchable(monkeypatch):
    """An explorer of the shipped model that says at every score where a search is."""
    monkeypatch.setattr("retrieval_interp.explorer.state._TELLING", -1)
    bench = ri.open("small", examples=32, progress=lambda items, what: items)
    return bench.explore()


def test_a_cancelled_search_gives_the_best_circuit_so_far(searchable):
    page, texts = searchable.exploring, []

    def publish(html):
        if "best cost" in page.page["busy"]:
            texts.append(page.page["busy"])
            page.cancelled = True

    page.publish = publish
    ask(page, "discover")
    assert len(texts) == 1 and page.page["said"].startswith("unfinished: the search was cancelled")
    assert page.bench.circuit.mechanisms and page.bench.circuit.unfinished
    assert page.page["busy"] == "" and page.bench.undoable
    ask(page, "clear")
    page.publish = lambda html: setattr(page, "cancelled", True)
    ask(page, "discover")
    assert page.page["said"].startswith("nothing was found: the search was cancelled")
    assert page.bench.circuit.mechanisms == {} and not page.page["failed"]


def test_messages_are_answered_while_a_notebook_searches(searchable):
    """A notebook has an event loop. The search has a copy of the model, which others may use."""
    page, seen = searchable.exploring, []

    async def becomes(condition):
        while not condition():
            await asyncio.sleep(0.01)

    async def work():
        searchable._answer(None, {"do": "discover"})
        assert not page.bench.circuit.mechanisms  # asked, and not yet done
        await asyncio.wait_for(becomes(lambda: "best cost" in page.page.get("busy", "")), 300)
        searchable._answer(None, {"do": "show", "head": "L2.H0", "example": 3})
        seen.append(weights(page.page["look"]))
        searchable._answer(None, {"do": "cancel"})
        await asyncio.wait_for(becomes(lambda: page.bench.circuit.mechanisms), 300)
        await asyncio.wait_for(becomes(lambda: page.page["said"]), 300)

    asyncio.run(work())
    assert page.page["said"].startswith("unfinished: the search was cancelled")
    _, cache = page.bench.model.run_with_cache(page.bench.batch.inputs)
    torch.testing.assert_close(seen[0], cache["blocks.2.attn.hook_pattern"][3, 0])
