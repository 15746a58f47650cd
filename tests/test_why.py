"""What an answer comes from: searches, what is told of them, and what is refused."""

import itertools
import json
import re
from dataclasses import replace

import pytest
import torch

import retrieval_interp as ri
from examples.reach_the_bound import PAIR, TOKEN, compile_circuit, split
from retrieval_interp.circuits.counterfactual import units as units_module
from retrieval_interp.circuits.counterfactual.explanation import explain
from retrieval_interp.circuits.counterfactual.keep_search import (
    KeepSearch,
    Recovery,
    smallest_confirmed,
)
from retrieval_interp.circuits.counterfactual.question import ask
from retrieval_interp.circuits.counterfactual.units import Contributions, MetricTask, Unit
from retrieval_interp.circuits.flow import causal_depth
from retrieval_interp.circuits.head_kinds import head_name, holds_on_text
from retrieval_interp.circuits.losses import Scorer
from retrieval_interp.views.why_text import finding, needs_text
from tests.built_by_hand import LastMark, equations_model
from tests.models import untrained_bridge
from tests.random_heads import random_heads
from tests.texts import SENTENCE, giving, pairs


def test_a_model_whose_truth_is_known_is_explained():
    """Layer 0 looks two words back, whatever they are; layer 1 looks for what is asked."""
    model, task = equations_model()
    vars(task)["role_names"] = ("word", "value", "before", "end")
    found = ri.why(model, task, examples=32, controls=4)
    assert [level.name for level in found.levels] == ["heads", "rows", "paths"]
    units = [unit.text(task.role_names) for unit in found.levels[-1].units]
    assert units == ["L0.H0 end<-word", "L1.H0 end<-before"]
    assert found.levels[-1].kept.share == pytest.approx(1, abs=1e-3) and not found.unfinished
    assert found.levels[-1].complement.share == pytest.approx(0, abs=1e-3)
    assert len(found.control) == 4
    brings, looks = found.units
    assert brings.without_attention.share > 0.99 and brings.without_values.share < 0.01
    assert looks.without_attention.share < 0.01 and looks.without_values.share > 0.99
    assert brings.origin.embedding == pytest.approx(brings.origin.total) and brings.by_values > 1
    assert abs(looks.by_values) < 1e-3 * looks.by_attention
    assert brings.stability == looks.stability == 1
    assert [str(later.path) for later in brings.enables] == ["L1.H0 end<-before"]


@pytest.mark.parametrize(
    ("name", "paths"),
    [
        ("small", "L2.H0 s0<-s2, L4.H0 s0<-s4"),
        ("repeated", "L1.H0 s0<-s2"),
        pytest.param(
            *("k-hop", "L2.H0 s0<-s1, L2.H0 s0<-s2, L3.H0 s0<-s1, L3.H0 s0<-s2"),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_shipped_models_keep_what_their_circuits_say(name, paths):
    shipped = ri.load_checkpoint(name)
    found = ri.why(shipped.model, shipped.task, controls=2)
    assert ", ".join(sorted(unit.text() for unit in found.levels[-1].units)) == paths
    assert found.levels[-1].kept.share > found.keep > found.levels[-1].complement.share


def test_what_the_query_finds_first_it_looks_for_next(small):
    found = ri.why(small.model, small.task, controls=2)
    (later, one), *rest = found.enabled_by("L4.H0")
    assert later.unit.head == (2, 0) and one.side == "query" and not rest
    assert one.when_cut < 0.1 < 0.9 < one.attention
    assert repr(found).startswith("The MSE is 0.01 on 32 examples, and 1.88 where all heads")
    assert "enables L4.H0" in repr(found) and "looks at B of A->B" in repr(found)


@pytest.mark.parametrize(("least", "best"), [(5, 5), (4, 4), (3, 3), (2, 2), (1, 1), (9, 5)])
def test_units_are_put_back_until_other_prompts_confirm(least, best):
    """`least` units recover what is asked for there; of 9, all five count as enough."""
    units = tuple(Unit(ri.Head(layer, 0)) for layer in (2, 4, 3, 1, 0))
    held = [units, units[:4], units[:1]]
    assert smallest_confirmed(held, lambda some: 0.9 * len(some) / least, 0.9) == units[:best]


def test_stability_is_the_share_of_redraws_in_which_a_unit_is_among_the_top(monkeypatch):
    """Against all 27 redraws of three prompts, of which the last decides about the second head."""
    monkeypatch.setattr(units_module, "_BOOTSTRAPS", 3000)
    by_prompt = torch.tensor([[5.0, 1.0, 2.0], [5.0, 1.0, 2.0], [5.0, 9.0, 2.0]])
    heads = torch.stack([by_prompt, torch.zeros(3, 3)])[:, :, None]  # [split prompt layer head]
    rows = heads[..., None]
    estimates = Contributions(heads, rows, rows[..., None], [])
    sums = [by_prompt[list(drawn)].sum(0) for drawn in itertools.product(range(3), repeat=3)]
    ranked = [set(total.argsort(descending=True)[:2].tolist()) for total in sums]
    found = estimates.stability([Unit(ri.Head(0, head)) for head in (0, 1)])
    for unit, share in found.items():
        exact = sum(unit.head.head in top for top in ranked) / 27
        assert share == pytest.approx(exact, abs=0.03)
        assert (exact == 1) == (unit.head.head == 0)


COMPILED = [pytest.param(n, marks=[pytest.mark.slow] * (n > 2)) for n in range(0, 24, 2)]


@pytest.mark.parametrize("index", COMPILED)
def test_compiled_models_keep_the_paths_that_depend_on_the_question(index):
    task = ri.RetrievalTask(steps=1 + index % 6, dim=8, tokens="unit")
    layers = causal_depth(task.steps) + index // 6
    rules = random_heads(task, layers, seed=index, extras=False)
    built = compile_circuit(rules, task, n_layers=layers)
    found = ri.why(built.model, task, controls=0, seed=index)
    names = {f"{path}" for path in built.carrying | built.enabling if path.path.dest == 0}
    # Where the head that joins pairs finds none, at the query, it brings the query's own token.
    own = {f"{rule.place} s0<-s0" for rule in rules if rule.query == PAIR}
    kept = {unit.text() for unit in found.levels[-1].units}
    assert names <= kept <= names | own and not found.unfinished
    for score in found.units:  # each is needed, also where only its attention or values are
        assert score.without.share < 0.9
        assert (score.unit.text() in own) == (
            score.without_attention.share > score.without_values.share
        )


def test_heads_that_stand_in_for_each_other_are_told():
    """Of three copies two suffice: any two that look elsewhere win over the third."""
    task = ri.RetrievalTask(steps=3, dim=8, tokens="unit")
    draws = (random_heads(task, 3, seed, extras=False) for seed in itertools.count(1000))
    first, *others = next(rules for rules in draws if rules[0].query == TOKEN)
    built = compile_circuit([*split(first, [1, 2]), *others], task, n_layers=3)
    found = ri.why(built.model, task, controls=0, keep=0.4)
    copies = [ri.parse_head_path(f"L0.H{number} s0<-s1", 7) for number in range(3)]
    several = {frozenset(paths) for paths in found.needed if len(paths) > 1}
    assert several == set(map(frozenset, itertools.combinations(copies, 2)))
    assert "L1.H0 s0<-s2" in needs_text(found)


def test_heads_that_look_at_the_answer_are_named():
    task = giving()
    end, again, first, answer = (task.roles.index(name) for name in ("END", "S2", "S1", "IO"))
    batch = task.sample(4)
    kinds = [head_name(ri.RolePath(*path), task, batch) for path in ((end, answer), (end, first))]
    assert kinds == ["mover head", ""]
    assert head_name(ri.RolePath(again, first), task, batch) == "duplicate-token head"


def test_a_head_is_called_what_it_is_on_a_text_too(llama):
    def look_back(pattern, hook):
        pattern[:, 1] = torch.eye(pattern.shape[-1]).roll(-1, 1)
        pattern[:, 1, 0] = pattern[:, 1, 1]
        return pattern

    with llama.hooks(fwd_hooks=[("blocks.0.attn.hook_pattern", look_back)]):
        named = [
            holds_on_text(kind, ri.Head(0, 1), llama, llama.tokenizer)
            for kind in ("previous-token head", "duplicate-token head", "")
        ]
    assert named == [True, False, True]
    assert not holds_on_text("previous-token head", ri.Head(0, 0), llama, llama.tokenizer)


def test_a_neighbour_in_one_layout_makes_no_previous_token_head():
    tokens = torch.arange(12).view(2, 6)
    for places, kind in (([[3, 2], [3, 2]], ""), ([[3, 2], [5, 4]], "previous-token head")):
        batch = ri.Batch(tokens, tokens[:, :1], torch.tensor(places)[:, None])
        assert head_name(ri.RolePath(0, 1), LastMark(), batch) == kind


def test_a_row_that_looks_where_no_role_is_stays_a_row(small):

    class Unnamed(ri.Task):
        """The task of `small`, of whose positions only the query has a name."""

        role_names, scored_roles, plateau = ("query",), (0,), small.task.plateau
        counterfactual, example_losses = small.task.counterfactual, small.task.example_losses

        def sample(self, n, seed=0, device="cpu", split="train", start=0):
            batch = small.task.sample(n, seed, device, split, start)
            return replace(batch, roles=batch.roles[:, :, :1])

    found = ri.why(small.model, Unnamed(), controls=2)
    rows = ["L2.H0 query", "L4.H0 query"]
    assert sorted(unit.text(["query"]) for unit in found.levels[-1].units) == rows
    assert "recovered by 2 rows of 2 heads" in str(found)
    assert "L4.H0: query looks at places without a name, a whole row. Without" in str(found)
    page = ri.why_view(found, small.model)  # where a row shows its head
    assert sorted(re.findall(r'<tr data-path="([^"]*)"', page.html)) == rows


def test_a_circuit_of_what_is_kept_recovers_what_a_search_measures(tmp_path):
    bench = ri.open("small", examples=32)
    bench.keep()
    nothing = bench.loss
    bench.keep("L2.H0 s0<-s2", "L4.H0 s0")  # a path and a row
    other = ri.with_counterfactual(bench.model, bench.batch, bench.task.counterfactual(bench.batch))
    recovery = Recovery(bench.model, MetricTask(bench.task), other)
    kept = recovery.kept([Unit(ri.Head(2, 0), 0, 2), Unit(ri.Head(4, 0), 0)]).share
    assert (nothing - bench.loss) / (nothing - bench.intact_loss) == pytest.approx(kept, abs=1e-5)
    assert "of what the counterfactual takes away is recovered" in repr(bench)
    saved = bench.save(tmp_path / "kept.json")  # and read where nothing has a counterfactual yet
    again = ri.open("small", examples=32)
    again.load(saved)
    score = ri.score_circuit(bench.model, bench.task, bench.circuit, again.batch, controls=0)
    assert again.loss == pytest.approx(bench.loss) == score.combined_loss
    assert "L2.H0 keeps" in again.drawing()
    with pytest.raises(ri.InputError, match="expected a batch with a counterfactual"):
        Scorer(bench.model, bench.task, bench.task.sample(2)).loss(bench.circuit)
    with pytest.raises(ri.InputError, match="expected a role from s0 to s6, found 's2<-s3'"):
        bench.keep("L2.H0 s0<-s2<-s3")


def test_nothing_to_recover_is_said(small):
    with pytest.raises(ri.InputError, match="there is nothing to recover, use another"):
        ri.why(small.model, small.task, counterfactual=lambda batch, seed: batch)

    def near(batch, seed):
        """Asked for nearly the same: the loss is half as large again, and still next to nothing."""
        other = small.task.counterfactual(batch, seed)
        return replace(batch, inputs=torch.lerp(batch.inputs, other.inputs, 0.2))

    # A tenth of 0.75, the loss of knowing nothing.
    with pytest.raises(ri.InputError, match="than 0.074., a tenth of what .* nothing to recover"):
        ri.why(small.model, small.task, counterfactual=near)


def test_a_model_that_answers_everything_alike_has_no_counterfactual(tmp_path):
    model = untrained_bridge("gpt2", tmp_path)
    with torch.no_grad():  # whatever it reads, it answers the same
        for parameter in model.parameters():
            parameter.zero_()
    with pytest.raises(ri.InputError, match="expected another token in place of"):
        ask(model, SENTENCE, " Mary")


def shorter(batch, seed):
    return replace(batch, inputs=batch.inputs[:, 1:])


@pytest.mark.parametrize(
    ("asked", "options", "message"),
    [
        ([SENTENCE], {}, "expected a prompt, a task or a list of ri.Pair"),
        (torch.tensor([1, 2]), {}, "expected a prompt, a task or a list of ri.Pair"),
        ("a = b", {"answer": 3}, "answer: expected text, found 3"),
        ("a = b", {}, "a model with a tokenizer, found none"),
        ("a = b", {"keep": 1.0}, "keep: expected a share above 0 and below 1"),
        (None, {"counterfactual": shorter}, "expected prompts of the same length and padding"),
    ],
)
def test_what_cannot_be_asked_is_refused(small, asked, options, message, without_type_checks):
    with pytest.raises(ri.InputError, match=message):
        ri.why(small.model, small.task if asked is None else asked, **options)


def test_prompts_too_few_to_tell_are_refused_with_that_reason(small):
    """A fall that is a tenth of what the model knows, but not two of its standard errors."""
    batch = small.task.sample(4, split="discovery")
    batch = ri.with_counterfactual(small.model, batch, small.task.counterfactual(batch))
    recovery = Recovery(small.model, MetricTask(small.task), batch)
    recovery.none_kept = recovery.intact - torch.tensor([4.0, -2.0, 3.0, -2.0])
    recovery.gap = 0.75
    with pytest.raises(ri.InputError, match="two standard errors of the fall.* use more prompts"):
        recovery.check_gap()


def test_a_search_out_of_time_tells_what_it_has(monkeypatch, small):
    runs, count_run = [], Recovery.count_run
    monkeypatch.setattr(Recovery, "count_run", lambda self: runs.append(1) or count_run(self))
    for module in ("deadline", "counterfactual.keep_search"):
        name = f"retrieval_interp.circuits.{module}.monotonic"
        monkeypatch.setattr(name, lambda: len(runs))
    for time, levels in ((3.0, 0), (16.0, 1), (1000.0, 3)):
        runs.clear()
        found = ri.why(small.model, small.task, time=time, examples=8, controls=2)
        assert len(found.levels) == levels
        assert ("time limit" in found.unfinished) == (levels < 3)
        assert ("when it was stopped" in found.unfinished) == (levels == 1)
        assert ("Nothing was found" in str(found)) == (not levels)


def test_another_half_of_the_pairs_is_reported(llama):
    """Also its page, which asks nobody."""
    two = pairs({}, {"clean": SENTENCE.replace("drink", "store")})
    task = ri.PairsTask(two * 4, llama.tokenizer)
    metric = MetricTask(task)
    deciding, telling = (task.sample(4, split=split) for split in ("discovery", "test"))
    assert not torch.equal(deciding.inputs, telling.inputs)
    both = [ri.with_counterfactual(llama, b, task.counterfactual(b)) for b in (deciding, telling)]
    recovery = Recovery(llama, metric, both[0])
    # Untrained: either way round, and little of it by attention.
    sign, base = 1.0 if recovery.gap > 0 else -1.0, float(recovery.none_kept.mean())
    metric = MetricTask(task, lambda out, batch: sign * (task.logit_differences(out, batch) - base))
    search = KeepSearch(llama, metric, both[0], keep=0.5)
    for _ in search:
        pass
    found = explain(search, both[1], task.counterfactual(telling), controls=2)
    page = ri.why_view(found, llama)
    assert "http" not in page.html.replace("http://www.w3.org", "").split("<script")[0]
    assert "\n".join(finding(found)) in page.text


def test_the_command_explains(run_command_in_process, tmp_path, undocumented):
    argv = ["--model", "small", "--examples", "16", "--controls", "2", "--json", "why.json"]
    argv += ["--graph", "graph.json"]
    done = run_command_in_process("why", *argv, "--report", "why.html", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    data = json.loads((tmp_path / "why.json").read_text())
    assert not undocumented(data, "why", "ablate")  # what a unit enables is as of ablate
    assert data["schema"] == "retrieval-interp/why/2"
    assert data["levels"][-1]["units"] == ["L2.H0 s0<-s2", "L4.H0 s0<-s4"]
    assert data["units"][0]["enables"][0]["path"] == "L4.H0 s0<-s4"
    assert data["needed"] == [["L2.H0 s0<-s2"], ["L4.H0 s0<-s4"]]
    nodes = json.loads((tmp_path / "graph.json").read_text())["nodes"]
    assert nodes["a2.h0"]["in_graph"] and not nodes["a1.h0"]["in_graph"]
    assert "L2.H0" in done.stdout and (tmp_path / "why.html").exists()


def explained(small, n, seed=0):
    """What heads are found on `n` prompts, and what they are worth on those of a seed."""

    def drawn(seed):
        batch = small.task.sample(n, seed, split="test")
        other = small.task.counterfactual(batch)
        return ri.with_counterfactual(small.model, batch, other), other

    task = MetricTask(small.task)
    search = KeepSearch(small.model, task, drawn(0)[0], upto="heads")
    assert [*search]
    return search, explain(search, *drawn(seed), controls=0)


@pytest.mark.parametrize("seed", [0, 1])
def test_what_was_found_and_measured_on_the_same_prompt_says_so(small, seed):
    text = " ".join(finding(explained(small, 1, seed)[1]))
    assert "The counterfactual is: " in text
    assert ("found and measured on the same prompt" in text) == (seed == 0)


def test_an_estimate_is_a_mean_over_prompts_with_its_standard_error(small):
    search, found = explained(small, 5)
    for score in found.units:
        by_prompt = search.estimates.by_example(score.unit).sum(0)
        assert score.by_attention + score.by_values == pytest.approx(float(by_prompt.mean()))
        assert score.estimate_se == pytest.approx(float(by_prompt.std()) / 5**0.5)
        assert score.estimate_se > 0
