"""What is concluded of models that others train, on models built by hand whose answer is known."""

import math
import re
from html import unescape

import pytest
import torch
import torch.nn.functional as F

import retrieval_interp as ri
from retrieval_interp.circuits import mechanisms
from retrieval_interp.circuits.circuit import Circuit, Head, HeadPath, RolePath
from retrieval_interp.circuits.discovery import space
from retrieval_interp.circuits.discovery.judge import Judge
from retrieval_interp.circuits.discovery.needed import needed_paths
from retrieval_interp.circuits.losses import Scorer
from retrieval_interp.circuits.mechanisms import PREVIOUS, UNIFORM
from retrieval_interp.circuits.scan import scan
from retrieval_interp.circuits.scores.score import score_circuit
from retrieval_interp.circuits.tolerance import Bar, Uninformed, constant_losses, has_learned
from retrieval_interp.explorer.state import Exploring
from retrieval_interp.tasks import InputError
from retrieval_interp.tasks.words.given_texts import NextTokenTask
from retrieval_interp.views.scan_view import scan_verdict
from retrieval_interp.views.score_text import score_table, score_to_dict, verdict
from tests.built_by_hand import END, DrawnTask, Star, built, copies, finds_the_star, scores

PATH = HeadPath(Head(0, 0), RolePath(0, 2))


def star_model(sharpness=12.0, scale=20.0):
    return built(7, [finds_the_star(sharpness, scale), (scores(7), copies(0.0))])


class Most(Star):
    """Which letter is most frequent, by uniform attention."""

    def sample(self, *arguments, **options):
        batch = super().sample(*arguments, **options)
        counts = F.one_hot(batch.inputs[:, :6] % 4, 4).sum(1)
        return ri.Batch(batch.inputs, counts.argmax(-1, keepdim=True), batch.roles)


# Knowing nothing


def test_knowing_nothing_is_the_better_of_uniform_heads_and_a_constant():
    """With every head uniform this model is sure of letters that are not the answer."""
    model, task = star_model(), Star()
    batch = task.sample(256, split="test")
    blind = Circuit({Head(0, 0): UNIFORM, Head(0, 1): UNIFORM}, 3)
    score = score_circuit(model, task, blind, batch, controls=0)
    shares = batch.targets[:, 0].bincount(minlength=4) / len(batch)
    entropy = float(-(shares * shares.log()).sum())
    assert score.combined_loss > 2 > entropy  # uniform heads
    assert score.uninformed_loss == pytest.approx(entropy, abs=0.02)
    assert score.uninformed == "the best constant output"
    assert not score.sufficient and score.kept < 0
    text = score_table(score, task)
    assert f"{score.uninformed_loss:.4f}" in text and "the best constant output" in text
    allowed = 0.05 * (score.uninformed_loss - score.baseline_loss)
    assert score.tolerance == pytest.approx(score.baseline_loss + allowed)
    found = scan(model, task, examples=64)
    assert found.uninformed == "the best constant output" and "constant" in scan_verdict(found)


def test_a_model_whose_heads_are_uniform_knows_what_it_knows():
    model = built(7, [(scores(7), copies(60.0))])
    found = ri.discover(model, Most(), examples=128)
    assert found.mechanisms == {Head(0, 0): UNIFORM}
    score = score_circuit(model, Most(), found, Most().sample(256, split="test"), controls=0)
    assert score.uninformed == "the best constant output"
    assert score.sufficient and score.kept == pytest.approx(1.0)


def test_the_best_constant_of_few_examples_is_not_fitted_to_them():
    """Eight examples of a hundred classes: all that is known is that each class is as likely."""

    batch = Star().sample(8)
    batch = ri.Batch(batch.inputs, torch.arange(8)[:, None], batch.roles)
    assert constant_losses(Star(), batch, 100).mean() == pytest.approx(math.log(100))
    same = ri.Batch(batch.inputs, torch.full((8, 1), 3), batch.roles)
    assert constant_losses(Star(), same, 100).mean() < 0.7 * math.log(100)

    class Accuracy(Star):  # has no gradient: what is left is a guess, zeros, the first class
        def example_losses(self, outputs, batch):
            return (outputs[:, 6].argmax(-1) != batch.targets[:, 0]).float()[:, None]

    batch = Accuracy().sample(64)
    wrong = float((batch.targets != 0).float().mean())
    assert constant_losses(Accuracy(), batch, 4).mean() == pytest.approx(wrong)


def test_an_excess_is_judged_by_its_own_error():
    """Hard and easy examples, each 0.02 worse: clear where the intact model sets the limit."""
    task = Star()
    intact = torch.rand(100, generator=torch.Generator().manual_seed(0))
    relative = Bar(task, intact, 1.1, None)
    allowed = 0.05 * (1.1 - float(intact.mean()))
    assert 0.02 < allowed < 2 * float(intact.std()) / 10
    assert relative.keeps(intact + 0.02) and relative.side(intact + 0.02) is False
    stated = Bar(task, intact, 1.1, float(intact.mean()) + allowed)
    assert stated.side(intact + 0.02) is None  # the loss itself is not so well known
    assert relative.side(intact + 2 * allowed) is True
    hard = intact.sort(descending=True).values  # the first examples say little of the rest
    assert Bar(task, hard, 1.1, None).keeps(hard[:16] + 0.02) and float(hard[:16].mean()) > 0.8
    noise = torch.linspace(-2, 2, 100)
    assert relative.side(intact + allowed + noise) is None
    # So is what the model knows: always a little more than nothing, however little.
    for ahead, learned in (
        (0.01, True),
        (0.001 + noise * 0.02, False),
        (0.001 + noise * 0.002, True),
    ):
        blind = Uninformed(0.0, "", intact + ahead)
        assert has_learned(intact, blind) == learned


def test_a_model_that_knows_nothing_says_so_everywhere(tmp_path):
    """It has the right shares of the letters, and some noise."""
    model, task = built(7, [(scores(7), copies(0.0))]), Star()
    with torch.no_grad():
        model.unembed.b_U += torch.tensor([0.01, -0.01, 0.0, 0.02])
    said = "has not learned the task: its cross entropy of 1.3"
    bench = ri.open(model, task, examples=64)
    assert said in repr(bench) and said in Exploring(bench, str, lambda act: None).html
    view = bench.discover()
    assert said in " ".join(repr(view).split()) and "No circuit to find." in repr(view)
    for look in (needed_paths, ri.discover):
        with pytest.warns(ri.InputWarning, match=said):
            look(model, task, examples=64)
    bench.suppose("L0.H0 uniform")  # which changes nothing, and yet is no circuit of anything
    score = bench.score(0).data
    data = score_to_dict(score, "", task, 0)
    assert (data["learned"], data["sufficient"], data["minimal"]) == (False, False, False)
    assert "of what was learned" not in score_table(score, task) and math.isnan(data["kept"])
    assert said in verdict(score, task) and said in bench.report(tmp_path / "r.html").read_text()
    assert said in scan_verdict(scan(model, task, examples=64))


def test_nothing_is_returned_that_is_worse_than_the_tolerance():
    """The intact model is not clearly below it, and no start holds."""
    model, task = star_model(sharpness=3.0), Star()
    intact = Scorer(model, task, task.sample(64, split="discovery")).base_losses.mean()
    found = ri.discover(model, task, tolerance=float(intact) * 0.5, examples=64, heads=[Head(0, 1)])
    assert not found.mechanisms and not found.unfinished
    bench = ri.open(model, task, examples=64, tolerance=float(intact) * 0.5)
    said = repr(bench.discover(heads=["L0.H1"]))
    assert "The search has ended: the intact model itself is not below" in said


@pytest.mark.parametrize("seed", range(3))
def test_what_is_needed_in_few_examples_is_found(seed):
    """One example in twenty has a star; in all others the bias gives the answer."""
    task = Star(starless=0.95)
    first = task.sample(64, seed, split="discovery")
    bias = torch.tensor([9.0, 0.0, 0.0, 0.0])
    looks, writes = finds_the_star(20.0, 30.0)
    looks[END, END] = 10.0  # so that END keeps to itself where there is no star
    model = built(7, [(looks, writes)], bias=bias)
    judge = Judge(model, task, task.sample(512, seed, split="discovery"))
    cut = judge.empty.cut(PATH)
    assert judge.loss(judge.empty) < judge.bar.loss < 0.1 < judge.losses(cut).mean()
    assert needed_paths(model, task, seed=seed) == [(PATH,)]
    rare = (first.roles[:, 0, 2] >= 0).sum()
    assert rare < 12


def three_heads(*scales):
    return built(7, [finds_the_star(30.0, scale) for scale in scales])


def test_of_several_heads_any_one_suffices_only_if_that_is_clear():
    task = Star()
    every = tuple(HeadPath(Head(0, head), RolePath(0, 2)) for head in range(3))
    alike = three_heads(12.0, 12.0, 12.0)
    needed = needed_paths(alike, task, 0.05, examples=64)
    assert needed == [every]
    assert repr(needed) == "[L0.H0 END<-star, L0.H1 END<-star, L0.H2 END<-star]"
    unlike = three_heads(12.0, 4.0, 4.0)
    batch = task.sample(64, split="discovery")
    scorer = Scorer(unlike, task, batch)
    weak = scorer.loss(scorer.empty_circuit.cut(every[0], every[1]))
    assert scorer.loss(scorer.empty_circuit.cut(*every[:1])) < weak
    circuit = Circuit({}, 3, redundant=(every,))
    for tolerance, suffices in (
        (weak * 1.5, (True, True, True)),
        (weak * 0.5, (True, False, False)),
    ):
        score = score_circuit(unlike, task, circuit, batch, tolerance, controls=0)
        (row,) = score.redundant
        assert row.suffice == suffices and row.needed and row.one_suffices == all(suffices)
    assert "not any one suffices (one left: L0.H0 0.0" in score_table(score, task)
    needed = needed_paths(unlike, task, weak * 0.5, examples=64)
    assert all(len(paths) < 3 for paths in needed)


# Heads that work in one row


class Follows(DrawnTask):
    """The middle of five letters answers with the one before it; only the middle has a role."""

    role_names, answer_role, asked = ("middle",), None, (2,)

    def draw(self, rng):
        letters = [rng.randrange(4) for _ in range(5)]
        return letters, [letters[1]], [[2]]


@pytest.mark.parametrize("rows", [range(5), [2]])
def test_a_head_that_works_in_one_row_gets_its_rule(rows):
    looks = torch.zeros(9, 9)
    for dest in range(5):
        looks[4 + dest, 4 + max(dest - 1, 0) if dest in rows else 4 + dest] = 30.0
    model = built(5, [(looks, torch.eye(4) * 9)], d_vocab=4, attention_dir="bidirectional")
    assert ri.discover(model, Follows(), examples=64).mechanisms == {Head(0, 0): PREVIOUS}


def test_a_rule_of_ones_own_is_tried(monkeypatch):
    class TwoBack(mechanisms.Rule):
        kind = "two-back"

        def targets(self, where):
            return torch.ones_like(where.allowed).tril(-2).triu(-2)

    class FollowsTwoBack(Follows):
        asked = (3,)

        def draw(self, rng):
            letters = [rng.randrange(4) for _ in range(5)]
            return letters, [letters[1]], [[3]]

    monkeypatch.setattr(space, "RULES", [*mechanisms.RULES, TwoBack()])
    monkeypatch.setitem(space.COSTS, "two-back", (1, 0))
    looks = torch.zeros(9, 9)
    for dest in range(5):
        looks[4 + dest, 4 + max(dest - 2, 0)] = 30.0
    model = built(5, [(looks, torch.eye(4) * 9)], d_vocab=4, attention_dir="bidirectional")
    (rule,) = ri.discover(model, FollowsTwoBack(), examples=64).mechanisms.values()
    assert isinstance(rule, TwoBack)


# Circuits that are told the answer


def test_a_circuit_that_is_told_where_the_answer_stands_says_so_everywhere():
    """A head that attends to the star with 0.5 to 0.9, replaced by one that is told where it is."""
    model, task = star_model(sharpness=3.5, scale=5.0), Star()
    bench = ri.open(model, task, examples=256)
    supposed = repr(bench.suppose("L0.H0 one-hot END<-star", "L0.H1 uniform"))
    assert "better than the intact model" in " ".join(supposed.split())
    score = bench.score(0).data
    gain = score.baseline_loss - score.combined_loss
    assert score.better and score.sufficient and gain > 0.02
    for text in (verdict(score, task), bench.score(0).html):
        words = " ".join(unescape(re.sub("<[^>]*>", "", text)).split())
        assert f"better than the intact model, by {gain:.4g}" in words
        assert "told where the answer stands: its path L0.H0 END" in words
    other = score_circuit(
        model, task, ri.parse_circuit(["L0.H1 uniform"], task), bench.batch, controls=0
    )
    assert not other.better and not other.notes


# Losses and tasks


def test_the_loss_of_text_is_exact_in_a_large_vocabulary():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 9, 49_152, generator=generator) * 4
    task = NextTokenTask([[5, 70, 800, 9_000, 1, 2, 3, 40_000, 9], [1, 2, 3, 4, 5]])
    batch = task.whole()
    exact = F.log_softmax(logits.double(), dim=-1)
    expected = [
        -sum(float(exact[row, at, token]) for at, token in enumerate(ids[1:])) / (len(ids) - 1)
        for row, ids in enumerate(task.sequences)
    ]
    losses = task.example_losses(logits, batch)[:, 0]
    assert losses.tolist() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("ignored", ["split", "seed", "start"])
def test_a_task_that_ignores_what_it_is_asked_for_is_refused(ignored):
    class Deaf(Star):
        def sample(self, n, seed=0, device="cpu", split="train", start=0):
            asked = {"seed": seed, "split": split, "start": start}
            asked[ignored] = {"seed": 0, "split": "train", "start": 0}[ignored]
            return super().sample(n, device=device, **asked)

    for use in (ri.open, ri.discover):
        with pytest.raises(InputError, match=f"other examples for another {ignored}"):
            use(star_model(), Deaf(), examples=32)
