"""What the explorer's page shows and does, without a browser."""

import asyncio
import queue
import sys

import pytest
import torch

import retrieval_interp as ri
from retrieval_interp.explorer.state import Exploring
from retrieval_interp.tasks import InputError


def explored(bench):
    """A page without a browser, and what waits for it."""
    waiting = queue.SimpleQueue()
    page = Exploring(bench, lambda html: None, waiting.put)
    page.waiting = waiting
    return page


@pytest.fixture
def page(bench):
    return explored(bench)


def work(page):
    """Do all that waits, also for a search or a score."""
    while page.busy or not page.waiting.empty():
        page.waiting.get(timeout=300)()


def ask(page, what, **more):
    page.answer({"do": what, **more})
    work(page)


def worth(page, key):
    return page.losses[page.page["details"][key]]


def how(page):
    return page.page["details"]["how"]


def test_a_click_makes_a_path_and_a_second_takes_it_away(page, bench):
    ask(page, "toggle", path="L1.H0 s0<-s2")
    assert str(bench.circuit[1, 0]) == "one-hot s0<-s2"
    assert bench.loss != bench.intact_loss and f"{bench.loss:.4f}" in page.html
    done = ("toggle", 0), ("undo", 1), ("redo", 0), ("undo", 1), ("clear", 0), ("undo", 1)
    for what, paths in done:
        ask(page, what, path="L1.H0 s0<-s2")
        assert len(list(bench.circuit.paths())) == paths and not page.page["failed"]
        assert bench.loss == pytest.approx(bench.loss_with(bench.circuit), abs=1e-6)
    ask(page, "suppose", line="L0.H0 uniform")
    ask(page, "redo")  # what was undone is another circuit's
    assert "expected an undone change" in page.page["said"] and not bench.redoable


def test_a_selected_path_says_what_it_is_worth(page, bench):
    path = "L1.H0 s0<-s2"
    ask(page, "show", path=path)
    cut = bench.loss_with(bench.scorer.empty_circuit.cut(ri.parse_head_path(path, 5)))
    assert worth(page, "cut") == pytest.approx(cut, abs=1e-6)
    assert worth(page, "changed") == pytest.approx(bench.loss_with(path), abs=1e-6)
    assert how(page) == "with L1.H0 one-hot along this path alone"
    attention = float(bench.measured.intact_attention[1, 0, 0, 2])
    assert page.page["details"]["attention"] == pytest.approx(attention, abs=1e-4)


def test_a_selected_path_of_the_circuit_says_what_it_is_worth_there(page, bench):
    path = "L1.H0 s0<-s2"
    ask(page, "suppose", line="L0.H0 uniform")
    ask(page, "toggle", path=path)
    ask(page, "show", path=path)
    assert page.page["inside"] and how(page) == "removed from the circuit"
    assert worth(page, "changed") == pytest.approx(bench.loss_with("L1.H0 one-hot"))
    ask(page, "show", path="L1.H0 s4<-s3")
    assert not page.page["inside"] and how(page) == "with it"  # beside the other path
    ask(page, "score")
    assert page.page["rows"][0]["removed_loss"] == bench.scored.paths[0].removed_loss
    assert page.page["scored"]["verdict"].startswith(ri.verdict(bench.scored, bench.task))


def test_a_path_that_the_mask_hides_says_so(page):
    ask(page, "show", path="L1.H0 s2<-s0")
    assert "source before its destination" in page.html


def test_the_choices_are_worth_what_they_say(page, bench):
    ask(page, "suppose", line="L1.H1 one-hot s4<-s3")
    ask(page, "show", head="L1.H1", example=3)
    choices = page.page["choices"]
    (chosen,) = [choice for choice in choices if choice["chosen"]]
    assert (chosen["line"], chosen["name"]) == ("L1.H1 one-hot s4<-s3", "as it is")
    names = {choice["name"] for choice in choices}
    assert {"original", "uniform", "identity", "role-mean"} <= names
    losses = [page.losses[choice["circuit"]] for choice in choices]
    for choice, loss in zip(choices, losses):
        ask(page, "suppose", line=choice["line"])
        assert bench.loss == pytest.approx(loss, abs=1e-5), choice
        assert not page.page["failed"]


def test_a_click_is_answered_between_two_losses(page):
    work(page)
    page.answer({"do": "show", "head": "L1.H0"})
    assert page.page["map"]["head"] == "L1.H0" and page.html.count("…") > 1
    page.waiting.get()()  # measures one loss, and leaves the next for later
    page.answer({"do": "show", "head": "L2.H0"})
    assert page.page["map"]["head"] == "L2.H0"
    work(page)
    assert "…" not in page.html


def test_choices_and_heads_say_what_is_kept(page):
    ask(page, "keep")
    ask(page, "toggle", path="L1.H0 s0<-s2")
    ask(page, "show", head="L1.H0")
    names = [choice["name"] for choice in page.page["choices"]]
    assert names == ["keeps all", "keeps a row", "keeps nothing", "as it is"]
    assert {row["kind"] for row in page.page["maps"]} == {"keeps nothing", "keeps 1"}
    ask(page, "show", path="L1.H0 s0<-s2")
    assert (how(page), page.page["details"]["act"]) == ("if not kept", "Do not keep it")
    ask(page, "show", path="L1.H0 s2<-s1")
    assert (how(page), page.page["details"]["act"]) == ("if kept", "Keep it")


def test_the_attention_of_a_kept_path_is_the_prompts_and_all_other_the_counterfactuals(page, bench):
    ask(page, "keep")
    assert "Counterfactual prompts: the question about another chain" in page.page["said"]
    _, there = bench.model.run_with_cache(bench.measured.counterfactual.inputs)
    torch.testing.assert_close(weights(page.page["look"]), there["pattern", 0][0, 0])
    ask(page, "toggle", path="L2.H1 s0<-s2")
    ask(page, "show", head="L2.H1", example=3)
    assert str(bench.circuit[2, 1]) == "counterfactual s0<-s2"
    with ri.ablated(bench.model, bench.circuit, bench.batch):
        _, here = bench.model.run_with_cache(bench.batch.inputs)
    query, first, second = bench.batch.roles[..., :3].unbind(2)
    expected = there["pattern", 2][3, 1].clone()
    kept = query[3][:, None], second[3]  # of any chain
    expected[kept] = here["pattern", 2][3, 1][kept]
    torch.testing.assert_close(weights(page.page["look"]), expected)
    by_role = bench.mean_attention(True)
    for pattern, source, role in ((here, second, 2), (there, first, 1)):
        mean = pattern["pattern", 2][torch.arange(8)[:, None], 1, query, source].mean()
        torch.testing.assert_close(by_role[2, 1, 0, role], mean)
    ask(page, "show", with_circuit=False)
    _, intact = bench.model.run_with_cache(bench.batch.inputs)
    torch.testing.assert_close(weights(page.page["look"]), intact["pattern", 2][3, 1])


def test_a_counterfactual_that_takes_nothing_away_is_said_and_shown():
    repeated = ri.load_checkpoint("repeated")
    with torch.no_grad():
        repeated.model.unembed.W_U.zero_()  # one answer to all
    bench = ri.open(repeated, examples=8)
    page, task, loss = explored(bench), bench.task, f"{bench.intact_loss:.4f}"
    ask(page, "show", example=3)
    assert not page.page["counterfactual"]
    ask(page, "keep")
    words = [" ".join(task.position_labels(bench.measured.counterfactual, at)) for at in (0, 3)]
    for text in (page.page["said"], " ".join(repr(bench).split())):
        assert f"with nothing kept it is {loss}, intact {loss}" in text
        assert "takes nothing away" in text and "recovered" not in text and words[0] in text
    assert page.page["counterfactual"] == words[1]


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
        drawn = torch.zeros_like(ordered)
        for x, y, weight, _ in shown["cells"]:
            drawn[y, x] = weight
        seen = ordered.where(ordered >= 0.02, 0.0)
        torch.testing.assert_close(drawn, seen, atol=6e-3, rtol=0)
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
        ({"do": "show", "example": 99}, "0 to 7"),
        ({"do": "suppose", "line": "L0.H0 dance"}, "expected original, cut, uniform"),
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


def in_an_event_loop(cell):  # as notebooks run their cells
    async def run():
        return cell()

    return asyncio.run(run())


def test_what_the_workbench_changes_is_shown_in_every_widget(bench):
    def cell():
        widgets = bench.explore(), bench.explore()
        bench.suppose("L0.H0 uniform")
        for widget in widgets:
            assert f"{bench.loss:.4f}" in widget.page and "1 of 6 heads" in widget.page
        widgets[1].exploring.answer({"do": "undo"})
        assert "0 of 6 heads" in widgets[0].page
        bench.suppose("L1.H0 cut s2<-s1")
        (cut,) = [row for row in widgets[0].exploring.page["maps"] if row["head"] == "L1.H0"]
        assert cut["kind"] == "cut"
        assert not any(framed for *_, framed in cut["cells"])

    in_an_event_loop(cell)


def test_without_widgets_it_says_what_to_install(bench, monkeypatch):
    monkeypatch.setitem(sys.modules, "anywidget", None)
    monkeypatch.delitem(sys.modules, "retrieval_interp.explorer.widget", raising=False)
    with pytest.raises(InputError, match="pip install"):
        in_an_event_loop(bench.explore)


# Searching


@pytest.fixture
def searchable(monkeypatch):
    """A page of the shipped model that says at every score where a search is."""
    monkeypatch.setattr("retrieval_interp.explorer.state._TELLING", -1)
    return explored(ri.open("small", examples=32))


@pytest.mark.slow
def test_heads_are_shown_during_a_search_and_cancelling_gives_the_best_circuit_so_far(searchable):
    page = searchable
    page.answer({"do": "discover"})
    while "best cost" not in page.busy:
        page.waiting.get(timeout=300)()
    page.answer({"do": "show", "head": "L2.H0", "example": 3})
    assert page.busy and not page.page["failed"] and not page.bench.circuit.mechanisms
    seen = weights(page.page["look"])
    page.answer({"do": "clear"})
    assert page.page["failed"] and "cancel" in page.page["said"] and page.busy
    page.answer({"do": "cancel"})
    assert page.busy == "cancelling" and "Cancel" in page.html
    work(page)
    assert page.page["said"].startswith("unfinished: the search was cancelled")
    assert page.bench.circuit.mechanisms and page.bench.circuit.unfinished
    assert page.busy == "" and page.bench.undoable
    _, cache = page.bench.model.run_with_cache(page.bench.batch.inputs)
    torch.testing.assert_close(seen, cache["blocks.2.attn.hook_pattern"][3, 0])


def test_a_search_and_a_score_may_be_cancelled_at_once(searchable):
    page = searchable
    for what, said in (("discover", "cancelled before"), ("score", "scoring: cancelled")):
        page.answer({"do": what})
        ask(page, "cancel")
        assert page.page["said"].startswith(said) and page.bench.circuit.mechanisms == {}
    assert page.bench.scored is None
