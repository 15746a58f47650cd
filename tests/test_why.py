"""Circuits by attention from a counterfactual prompt."""

import itertools
import json
import re
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch

import retrieval_interp as ri
from examples.reach_the_bound import PAIR, TOKEN, compile_circuit, split
from retrieval_interp.circuits import Head
from retrieval_interp.circuits.counterfactual.explanation import explain
from retrieval_interp.circuits.counterfactual.kinds import head_name, is_so_on_text
from retrieval_interp.circuits.counterfactual.mechanism import with_counterfactual
from retrieval_interp.circuits.counterfactual.origin import origins
from retrieval_interp.circuits.counterfactual.question import ask
from retrieval_interp.circuits.counterfactual.search import KeepSearch, Recovery, Share
from retrieval_interp.circuits.counterfactual.units import (
    MetricTask,
    Unit,
    estimate_units,
    halving,
    losing,
    prompts_at_once,
)
from retrieval_interp.circuits.flow import causal_depth
from retrieval_interp.circuits.hooks import ablated
from retrieval_interp.circuits.losses import Scorer
from retrieval_interp.circuits.paths import HeadPath
from retrieval_interp.explorer.state import Exploring
from retrieval_interp.tasks import InputError
from tests.oracles import FAMILIES, SENTENCE, by_hand, byte_pairs, random_heads, untrained_bridge


@pytest.fixture(scope="module", params=FAMILIES)
def model(request, tmp_path_factory):
    return untrained_bridge(request.param, tmp_path_factory.mktemp(request.param))


class Ending(ri.Task):
    """The token after the last one, with two named places before it."""

    role_names = ("END", "a", "b")
    answer_roles = (0,)
    n_words = 300

    def sample(self, n, seed=0, device="cpu", split="train", start=0):
        draw = torch.Generator().manual_seed(1000 * seed + ["train", "test"].index(split))
        tokens = torch.randint(5, self.n_words, (n, 9), generator=draw)
        return ri.Batch(tokens, tokens[:, :1], torch.tensor([[8, 2, 5]]).repeat(n, 1, 1))

    def example_losses(self, outputs, batch):
        logits = self.answers(outputs, batch)[:, 0, 0]
        return -logits.log_softmax(-1).gather(-1, batch.targets)


def values(cache, layer, n_heads):
    """A layer's values for every head, in a cache of `run_with_cache`."""
    v = cache[f"blocks.{layer}.attn.hook_v"]
    return v.repeat_interleave(n_heads // v.shape[2], dim=2)


def written_by_hand(patch, cache, units):
    """Plain hooks by which heads write what they write in a cached run, but for some units.

    `units` are (layer, head, dest, src) as positions; of what is not kept, `patch` is the cache's.
    """
    here = {}

    def note(x, hook):
        here[hook.name.split(".")[1], "v" if x.shape[-1] != x.shape[-2] else "pattern"] = x

    def put(z, hook):
        layer = int(hook.name.split(".")[1])
        n = z.shape[2]
        own, other = here[f"{layer}", "pattern"], cache[f"blocks.{layer}.attn.hook_pattern"]
        v = here[f"{layer}", "v"].repeat_interleave(n // here[f"{layer}", "v"].shape[2], dim=2)
        there = values(cache, layer, n)
        attention = own if patch == "v" else other
        read = v if patch == "pattern" else there
        new = torch.einsum("bhds,bshe->bdhe", attention, read)
        for at, head, dest, src in units:
            if at == layer:
                kept = own[:, head, dest, src, None] * v[:, src, head]
                lost = attention[:, head, dest, src, None] * read[:, src, head]
                new[:, dest, head] += kept - lost
        return new

    hooks = []
    for layer in range(2):
        place = f"blocks.{layer}.attn.hook_"
        hooks += [(place + "pattern", note), (place + "v", note), (place + "z", put)]
    return hooks


@pytest.mark.parametrize("patch", ["z", "pattern", "v"])
@torch.no_grad()
def test_what_is_kept_is_as_by_hand(model, patch):
    task = Ending()
    task.n_words = model.cfg.d_vocab
    batch, other = task.sample(6), task.sample(6, seed=1)
    other.inputs[:, :4] = batch.inputs[:, :4]  # where all is as in the run before
    plain = -task.example_losses(model(batch.inputs), batch)[:, 0]
    before = [point.has_hooks() for point in model.hook_dict.values()]
    with_other = with_counterfactual(model, batch, other)
    recovery = Recovery(model, MetricTask(task), with_other, patch)
    every = [Unit(head) for head in recovery.heads]
    for units, expected in ((every, recovery.intact), ((), recovery.nothing)):
        kept = recovery.metric(recovery.keeping(units))
        torch.testing.assert_close(kept, expected, atol=1e-5, rtol=0)
        lost = losing(recovery.empty, [u for u in every if u not in units], patch)
        torch.testing.assert_close(recovery.metric(lost), expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(recovery.intact, plain, atol=1e-5, rtol=0)

    _, cache = model.run_with_cache(other.inputs)

    def hooked(units):
        hooks = written_by_hand(patch, cache, units)
        outputs = model.run_with_hooks(batch.inputs, fwd_hooks=hooks)
        return -task.example_losses(outputs, batch)[:, 0]

    torch.testing.assert_close(recovery.nothing, hooked([]), atol=1e-5, rtol=0)
    # L0.H1 keeps the row of b, L1.H2 its path from END to a, L1.H0 all of it.
    places = [(0, 1, 5, src) for src in range(6)] + [(1, 2, 8, 2)]
    places += [(1, 0, dest, src) for dest in range(9) for src in range(dest + 1)]
    units = [Unit(Head(0, 1), 2), Unit(Head(1, 2), 0, 1), Unit(Head(1, 0))]
    metric = recovery.metric(recovery.keeping(units))
    torch.testing.assert_close(metric, hooked(places), atol=1e-5, rtol=0)
    assert [point.has_hooks() for point in model.hook_dict.values()] == before
    with pytest.raises(InputError, match="expected a batch with the attention of"):
        with ablated(model, recovery.keeping(units), batch):
            model(batch.inputs)


@torch.no_grad()
def test_a_unit_without_its_attention_or_values_is_as_by_hand(model):
    """A path, a row and a head, of which only one of the two is the counterfactual's."""
    task = Ending()
    task.n_words = model.cfg.d_vocab
    batch, other = task.sample(4), task.sample(4, seed=1)
    recovery = Recovery(model, MetricTask(task), with_counterfactual(model, batch, other))
    _, cache = model.run_with_cache(other.inputs)
    places = {
        Unit(Head(1, 2), 0, 1): [(1, 2, 8, 2)],
        Unit(Head(1, 1), 2): [(1, 1, 5, src) for src in range(6)],
        Unit(Head(1, 3)): [(1, 3, dest, src) for dest in range(9) for src in range(dest + 1)],
    }
    for halved, at in places.items():
        rest = [place for unit, kept in places.items() if unit != halved for place in kept]
        for patch in ("pattern", "v"):
            hooks = written_by_hand("z", cache, rest)
            noted, (name, put) = {}, hooks[-1]  # layer 1, z

            def note(x, hook, noted=noted):
                noted["v" if x.shape[-1] != x.shape[-2] else "pattern"] = x

            def half(z, hook, put=put, at=at, patch=patch, noted=noted):
                new, n = put(z, hook), z.shape[2]
                v = noted["v"].repeat_interleave(n // noted["v"].shape[2], dim=2)
                other_v, other_pattern = values(cache, 1, n), cache["blocks.1.attn.hook_pattern"]
                for _, head, dest, src in at:
                    where = other_pattern if patch == "pattern" else noted["pattern"]
                    what = other_v if patch == "v" else v
                    new[:, dest, head] += where[:, head, dest, src, None] * what[:, src, head]
                    lost = other_pattern[:, head, dest, src, None] * other_v[:, src, head]
                    new[:, dest, head] -= lost
                return new

            own = [("blocks.1.attn.hook_pattern", note), ("blocks.1.attn.hook_v", note)]
            outputs = model.run_with_hooks(
                batch.inputs, fwd_hooks=[*hooks[:-1], *own, (name, half)]
            )
            expected = -task.example_losses(outputs, batch)[:, 0]
            circuit = halving(recovery.empty, recovery.heads, list(places), halved, patch)
            torch.testing.assert_close(recovery.metric(circuit), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_templates_of_two_lengths_in_half_precision(family, dtype, tmp_path):
    """All kept is the intact run; nothing kept is the run on the counterfactual prompts."""
    model, half = untrained_bridge(family, tmp_path), untrained_bridge(family, tmp_path).to(dtype)
    words = ["cat", "dog", "sun", "sky", "one", "two"]
    texts = ["a {X} and a {Y}, then a", "so a {X} or a {Y}, and a {X2} then a"]
    read = [text.format(X="cat dog sun", Y="sky one two", X2="cat") for text in texts] * 3
    tokenizer = byte_pairs(read, vocab_size=model.cfg.d_vocab)
    fillings = {"X": words, "Y": words, "X2": "X"}
    task = ri.TemplateTask(
        texts, fillings, "X", "Y", tokenizer=tokenizer, counterfactual={"X": words}
    )
    batch = task.sample(12)
    other = task.counterfactual(batch)
    assert len(batch.roles[:, 0, 0].unique()) == 2
    recovery = Recovery(half, MetricTask(task), with_counterfactual(half, batch, other))
    every = recovery.keeping([Unit(head) for head in recovery.heads])
    assert torch.equal(recovery.metric(every), recovery.intact)
    plain = task.logit_differences(half(other.inputs), batch)
    rounding = {torch.float32: 1e-5, torch.bfloat16: 2**-6, torch.float16: 2**-9}[dtype]
    torch.testing.assert_close(recovery.nothing, plain.float(), atol=rounding, rtol=rounding)
    estimates = estimate_units(half, MetricTask(task), recovery.batch)
    exact = estimate_units(model, MetricTask(task), with_counterfactual(model, batch, other))
    assert (estimates.heads - exact.heads).norm() <= 8 * rounding * exact.heads.norm()


def test_only_what_differs_is_computed(tmp_path):
    """Before the first token that differs nothing is computed again."""
    model, task = untrained_bridge("llama", tmp_path), Ending()
    task.n_words = model.cfg.d_vocab
    batch, other = task.sample(6), task.sample(6, seed=1)
    other.inputs[:, :4] = batch.inputs[:, :4]
    recovery = Recovery(model, MetricTask(task), with_counterfactual(model, batch, other))
    sizes, weights = [], [p for p in model.blocks[0].mlp.modules() if not list(p.children())]
    first = next(part for part in weights if getattr(getattr(part, "weight", None), "ndim", 0) == 2)
    handle = first.register_forward_pre_hook(lambda part, args: sizes.append(args[0].numel()))
    recovery.kept([Unit(Head(0, 1), 2), Unit(Head(1, 2), 0, 1)])
    handle.remove()
    # What is the same may differ in its last bit.
    assert 6 <= sum(sizes) // model.cfg.d_model < 6 * 8 and "forward" not in vars(first)


def test_estimates_of_a_few_prompts_at_a_time_are_the_same(model, monkeypatch):
    task = Ending()
    task.n_words = model.cfg.d_vocab
    batch = with_counterfactual(model, task.sample(5), task.sample(5, seed=1))
    whole = estimate_units(model, MetricTask(task), batch)
    cfg = model.cfg
    room = 2.5 * cfg.n_layers * 9 * (16 * cfg.d_model + 2 * cfg.n_heads * 9)
    monkeypatch.setattr("retrieval_interp.circuits.counterfactual.units.GRAPH", room)
    assert prompts_at_once(model, batch) == 2
    for level, of_parts in zip(whole, estimate_units(model, MetricTask(task), batch)):
        torch.testing.assert_close(level, of_parts, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
@torch.no_grad()
def test_estimates_are_slopes_by_hand(model, share):
    """Of a path and of a row, with all heads at a share of the way; and of both their parts."""
    task = Ending()
    task.n_words = model.cfg.d_vocab
    batch, other = task.sample(4), task.sample(4, seed=1)
    estimates = estimate_units(
        model, MetricTask(task), with_counterfactual(model, batch, other), shares=(share,)
    )
    _, cache = model.run_with_cache(other.inputs)
    units = {Unit(Head(1, 2), 0, 1): [2], Unit(Head(0, 1), 2): range(6)}
    for unit, sources in units.items():
        (layer, head), dest = unit.head, {0: 8, 2: 5}[unit.dest]

        def metric(step, half, layer=layer, head=head, dest=dest, sources=sources):
            here = {}

            def note(x, hook):
                here["v" if x.shape[-1] != x.shape[-2] else "pattern", hook.layer()] = x

            def move(z, hook):
                at, n = hook.layer(), z.shape[2]
                new = torch.lerp(cache[f"blocks.{at}.attn.hook_z"], z, share)
                v = here["v", at].repeat_interleave(n // here["v", at].shape[2], dim=2)
                own, there = here["pattern", at], cache[f"blocks.{at}.attn.hook_pattern"]
                for src in sources if at == layer else ():
                    one, two = v[:, src, head], values(cache, at, n)[:, src, head]
                    p, q = own[:, head, dest, src, None], there[:, head, dest, src, None]
                    parts = {"where": (p - q) * (one + two) / 2, "what": (p + q) * (one - two) / 2}
                    new[:, dest, head] += step * parts[half]
                return new

            hooks = [
                (f"blocks.{at}.attn.hook_{name}", function)
                for at in range(2)
                for name, function in (("pattern", note), ("v", note), ("z", move))
            ]
            outputs = model.run_with_hooks(batch.inputs, fwd_hooks=hooks)
            return -task.example_losses(outputs, batch)[:, 0]

        for half, estimate in zip(("where", "what"), estimates.each(unit)):
            slope = (metric(0.01, half) - metric(-0.01, half)) / 0.02
            torch.testing.assert_close(estimate, slope, atol=2e-4, rtol=0.02)


@torch.no_grad()
def test_the_parts_of_a_path_add_up_to_what_it_brings(model):
    """And the first layer of a model whose MLPs write nothing reads the token alone."""
    task = Ending()
    task.n_words = model.cfg.d_vocab
    batch, other = task.sample(4), task.sample(4, seed=1)
    made = with_counterfactual(model, batch, other)
    estimates = estimate_units(model, MetricTask(task), made)
    paths = [HeadPath.parse(text, task.role_names) for text in ("L1.H2 END<-a", "L0.H1 END<-b")]
    found = origins(model, made, other, paths, estimates.slopes)
    _, here = model.run_with_cache(batch.inputs)
    _, there = model.run_with_cache(other.inputs)
    for path, src in zip(paths, (2, 5)):
        (layer, head), total = path.head, 0.0
        name = f"blocks.{layer}.attn.hook_pattern"
        half = (here[name] + there[name])[:, head, 8, src] / 2
        change = (values(here, layer, 4) - values(there, layer, 4))[:, src, head]
        total = float((half * (change * estimates.slopes[layer][:, 8, head]).sum(-1)).mean())
        assert found[path].total == pytest.approx(total, rel=1e-3, abs=1e-6)
        assert len(found[path].mlp) == len(found[path].attention) == layer
    # By hand, of what layer 0's MLP adds: its output at the source through the norm and W_V.
    path, (attn, norm) = paths[0], (model.blocks[1].attn, model.blocks[1].ln1)
    weights, parts = attn.W_V[2 * len(attn.W_V) // 4], []
    for cache in (here, there):
        middle, after = cache["blocks.0.hook_resid_mid"], cache["blocks.0.hook_resid_post"]
        mlp, x = (after - middle)[:, 2], after[:, 2]
        scale = (norm(after)[:, 2] - norm(torch.zeros_like(after))[:, 2]) / (
            x - x.mean(-1, keepdim=True) if hasattr(norm, "bias") and norm.bias is not None else x
        )
        centred = (
            mlp - mlp.mean(-1, keepdim=True)
            if hasattr(norm, "bias") and norm.bias is not None
            else mlp
        )
        parts.append((centred * scale) @ weights)
    name = "blocks.1.attn.hook_pattern"
    half = (here[name] + there[name])[:, 2, 8, 2] / 2
    slope = estimates.slopes[1][:, 8, 2]
    expected = float((half * ((parts[0] - parts[1]) * slope).sum(-1)).mean())
    assert found[path].mlp[0] == pytest.approx(expected, rel=1e-3, abs=1e-6)


def test_a_model_whose_truth_is_known_is_explained():
    """Layer 0 looks two words back, whatever they are; layer 1 looks for what is asked."""
    model, task = by_hand()
    found = ri.why(model, task, examples=32, controls=4)
    assert [level.name for level in found.levels] == ["heads", "rows", "paths"]
    assert [unit.text() for unit in found.levels[-1].units] == ["L0.H0 s3<-s0", "L1.H0 s3<-s2"]
    assert found.levels[-1].kept.share == pytest.approx(1, abs=1e-3) and not found.unfinished
    assert found.levels[-1].complement.share == pytest.approx(0, abs=1e-3)
    assert len(found.control) == 4
    # Layer 0 brings the word that is asked for, whatever it is; layer 1 looks for it.
    brings, looks = found.units
    assert brings.attention_gone.share > 0.99 and brings.values_gone.share < 0.01
    assert looks.attention_gone.share < 0.01 and looks.values_gone.share > 0.99
    assert brings.origin.embedding == pytest.approx(brings.origin.total) and brings.what > 1
    assert abs(looks.what) < 1e-3 * looks.where and brings.stability == looks.stability == 1
    assert [later.path.head for later in brings.enables] == [(1, 0)]


@pytest.mark.parametrize(
    ("name", "paths"),
    [
        ("small", {"L2.H0 s0<-s2", "L4.H0 s0<-s4"}),
        ("repeated", {"L1.H0 s0<-s2"}),
        pytest.param(
            "k-hop",
            {"L2.H0 s0<-s1", "L2.H0 s0<-s2", "L3.H0 s0<-s1", "L3.H0 s0<-s2"},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_shipped_models_keep_what_their_circuits_say(name, paths):
    shipped = ri.load_checkpoint(name)
    found = ri.why(shipped.model, shipped.task, controls=2)
    kept = {unit.text() for unit in found.levels[-1].units}
    assert kept == paths
    assert found.levels[-1].kept.share > found.keep > found.levels[-1].complement.share
    if name == "small":  # what the query finds first, it looks for next
        (later, one), *rest = found.enabled_by("L4.H0")
        assert later.unit.head == (2, 0) and one.side == "query" and not rest
        assert one.when_cut < 0.1 < 0.9 < one.attention
        assert repr(found).startswith("The MSE is 0.01 on 32 examples, and 1.88 where all heads")
        assert "enables L4.H0" in repr(found) and "looks at B of A->B" in repr(found)


def test_units_are_put_back_until_other_prompts_confirm(small):
    batch = small.task.sample(8, split="discovery")
    batch = with_counterfactual(small.model, batch, small.task.counterfactual(batch))
    search = KeepSearch(small.model, MetricTask(small.task), batch)
    units = [Unit(Head(layer, 0)) for layer in (2, 4, 3, 1, 0)]
    search._held = [tuple(units), tuple(units[:4]), (units[0],)]
    for least, best in ((5, 5), (4, 4), (3, 3), (2, 2), (1, 1), (9, 5)):  # 9: not all would do
        kept = partial(lambda least, some: Share(0.9 * len(some) / least, 0.0), least)
        search.measured[1:] = [SimpleNamespace(kept=kept)]
        assert search._confirmed() == tuple(units[:best])


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
        assert (score.unit.text() in own) == (score.attention_gone.share > score.values_gone.share)


def test_heads_that_stand_in_for_each_other_are_told():
    """Of three copies two suffice: any two that look elsewhere win over the third."""
    task = ri.RetrievalTask(steps=3, dim=8, tokens="unit")
    draws = (random_heads(task, 3, seed, extras=False) for seed in itertools.count(1000))
    first, *others = next(rules for rules in draws if rules[0].query == TOKEN)
    built = compile_circuit([*split(first, [1, 2]), *others], task, n_layers=3)
    found = ri.why(built.model, task, controls=0, keep=0.4)
    several = [paths for paths in found.needed if len(paths) > 1]
    assert sorted(sorted(f"{path}" for path in paths) for paths in several) == [
        [f"L0.H{one} s0<-s1", f"L0.H{two} s0<-s1"] for one, two in ((0, 1), (0, 2), (1, 2))
    ]
    assert any("L1.H0 s0<-s2" in needed for needed in found.needs)


def giving(counterfactual=None):
    names = ["Ann", "Bob", "Cid", "Dan"]
    tokenizer = byte_pairs([f"to {name} and" for name in names] * 9 + [SENTENCE], vocab_size=400)
    sentence = "When {S1} and {IO} went to the store, {S2} gave a drink to"
    fillings = {"IO": names, "S1": names, "S2": "S1"}
    options = {"wrong": "S1", "tokenizer": tokenizer, "counterfactual": counterfactual}
    return ri.TemplateTask([sentence], fillings, answer="IO", **options)


def test_heads_that_look_at_the_answer_are_named():
    task = giving()
    end, again, first, answer = (task.roles.index(name) for name in ("END", "S2", "S1", "IO"))
    batch = task.sample(4)
    kinds = [head_name(ri.RolePath(*path), task, batch) for path in ((end, answer), (end, first))]
    assert kinds == ["mover head", ""]
    assert head_name(ri.RolePath(again, first), task, batch) == "duplicate-token head"


def test_a_head_is_called_what_it_is_on_a_text_too(tmp_path):
    model = untrained_bridge("llama", tmp_path)

    def look_back(pattern, hook):
        pattern[:, 1] = torch.eye(pattern.shape[-1]).roll(-1, 1)
        pattern[:, 1, 0] = pattern[:, 1, 1]
        return pattern

    with model.hooks(fwd_hooks=[("blocks.0.attn.hook_pattern", look_back)]):
        named = [
            is_so_on_text(kind, Head(0, 1), model, model.tokenizer)
            for kind in ("previous-token head", "duplicate-token head", "")
        ]
    assert named == [True, False, True]
    assert not is_so_on_text("previous-token head", Head(0, 0), model, model.tokenizer)


def test_a_neighbour_in_one_layout_makes_no_previous_token_head():
    tokens = torch.arange(12).view(2, 6)
    for places, kind in (([[3, 2], [3, 2]], ""), ([[3, 2], [5, 4]], "previous-token head")):
        batch = ri.Batch(tokens, tokens[:, :1], torch.tensor(places)[:, None])
        assert head_name(ri.RolePath(0, 1), Ending(), batch) == kind


def test_a_row_that_looks_where_no_role_is_stays_a_row(small):

    class Unnamed(ri.Task):
        """The task of `small`, of whose positions only the query has a name."""

        role_names, answer_roles, plateau = ("query",), (0,), small.task.plateau
        counterfactual, example_losses = small.task.counterfactual, small.task.example_losses

        def sample(self, n, seed=0, device="cpu", split="train", start=0):
            batch = small.task.sample(n, seed, device, split, start)
            return replace(batch, roles=batch.roles[:, :, :1])

    found = ri.why(small.model, Unnamed(), controls=2)
    rows = ["L2.H0 query", "L4.H0 query"]
    assert sorted(unit.text(["query"]) for unit in found.levels[-1].units) == rows
    assert "recovered by 2 rows of 2 heads" in " ".join(found.finding)
    assert "L4.H0: query looks at places without a name, a whole row. Without" in str(found)
    page = ri.why_view(found, small.model)  # where a row shows its head
    assert sorted(re.findall(r'<tr data-path="([^"]*)"', page.html)) == rows
    assert page.html.count('"L4.H0":') == 1


def test_the_workbench_shows_the_same():
    view = ri.open("small", examples=16).why(controls=2, upto="heads")
    assert [unit.text() for unit in view.data.levels[-1].units] == ["L2.H0", "L4.H0"]
    assert "\n".join(view.data.finding) in view.text and "<b>L4.H0</b>" in view.html


def test_a_circuit_of_what_is_kept_is_built_by_clicking(tmp_path):
    bench = ri.open("small", examples=32, progress=lambda items, what: items)
    page = Exploring(bench, lambda html: None, lambda act: act())
    page.answer({"do": "keep"})
    nothing = bench.loss
    page.answer({"do": "toggle", "path": "L2.H0 s0<-s2"})  # a path
    page.answer({"do": "show", "head": "L4.H0"})
    assert page.page["choices"][1]["line"] == "L4.H0 counterfactual s0"
    page.answer({"do": "suppose", "line": page.page["choices"][1]["line"]})  # a row
    found = bench.circuit
    assert "of what the counterfactual takes away is recovered" in repr(bench)
    circuit = bench.keep("L2.H0 s0<-s2", "L4.H0 s0")
    assert bench.circuit == found and circuit.text.startswith("nothing changed")
    other = with_counterfactual(bench.model, bench.batch, bench.task.counterfactual(bench.batch))
    recovery = Recovery(bench.model, MetricTask(bench.task), other)
    kept = recovery.kept([Unit(Head(2, 0), 0, 2), Unit(Head(4, 0), 0)]).share
    assert (nothing - bench.loss) / (nothing - bench.intact_loss) == pytest.approx(kept, abs=1e-5)
    page.answer({"do": "toggle", "path": "L2.H0 s0<-s2"})
    assert not bench.circuit[2, 0].paths and page.page["failed"] is False
    page.answer({"do": "suppose", "line": "L2.H0 original"})  # a head
    page.answer({"do": "toggle", "path": "L2.H0 s0<-s2"})
    assert str(bench.circuit[2, 0]) == "counterfactual s0<-s2"
    saved = bench.save(tmp_path / "kept.json")  # and read where nothing has a counterfactual yet
    again = ri.open("small", examples=32, progress=lambda items, what: items)
    again.load(saved)
    score = ri.score_circuit(bench.model, bench.task, bench.circuit, again.batch, controls=0)
    assert again.loss == pytest.approx(bench.loss) == score.combined_loss
    assert "L2.H0 keeps" in again.drawing() and "is recovered" in page.page["said"]
    with pytest.raises(InputError, match="expected a batch with a counterfactual"):
        Scorer(bench.model, bench.task, bench.task.sample(2)).loss(bench.circuit)
    with pytest.raises(InputError, match="expected a head, a row or a path"):
        bench.keep("L2.H0 s0<-s2<-s3")


def test_circuits_are_read_back():
    task = ri.RetrievalTask()
    lines = ["L0.H0 counterfactual s2<-s1 s0", "L1.H0 patched s0<-s2", "L2.H0 counterfactual"]
    circuit = ri.parse_circuit(lines, task)
    assert circuit[0, 0].rows == (0,) and ri.Circuit.from_json(circuit.to_json(), 7) == circuit
    assert [repr(circuit).splitlines()[0]] == lines[:1]


def pairs(*changes):
    pair = ri.Pair(SENTENCE, SENTENCE.replace("John gave", "Ann gave"), (" Mary",), (" John",))
    return [replace(pair, **change) for change in changes or ({},)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"corrupt": SENTENCE + " the"}, "expected as many tokens as the prompt's .* part at"),
        ({"corrupt": SENTENCE}, "expected another prompt, found the same tokens"),
        ({"wrong_answers": (" Mary",)}, "begin with different tokens, found ' Mary'"),
        ({"answers": ()}, "expected right and wrong ones, found"),
        ({"clean": "", "corrupt": ""}, "expected another prompt"),
    ],
)
def test_pairs_that_do_not_fit_are_refused(tmp_path, change, message):
    model = untrained_bridge("gpt2", tmp_path)
    with pytest.raises(InputError, match=message):
        ri.PairsTask(pairs(change), model.tokenizer)


def test_pairs_of_prompts_are_read(tmp_path):
    model = untrained_bridge("gpt2", tmp_path)
    prompts = [vars(pair) for pair in pairs({}, {"clean": SENTENCE.replace("store", "drink")})]
    bad = [{**prompts[0], "corrupt": text} for text in ("When", "When Ann", SENTENCE)]
    data = json.dumps({"prompts": [*prompts, *bad], "word_idxs": {"S2": 1}})
    said = r"3 of 5 pairs are left out: .* as many tokens .* \(2 like this\); .* \(1 like this\)"
    with pytest.warns(ri.InputWarning, match=said):
        read = ri.PairsTask(ri.read_pairs(data), model.tokenizer)
    assert read.role_names[-1] == "END" and len(read) == 2
    assert read.description.startswith("2 of 5 pairs of prompts, such as ")
    one = ri.PairsTask(pairs(), model.tokenizer)
    batch = one.sample(1, split="test")
    other = one.counterfactual(batch)
    changed = (batch.inputs != other.inputs)[0].nonzero()[:, 0]
    text = model.tokenizer.decode(other.inputs[0].tolist())
    assert len(changed) and "Ann gave" in text
    outputs = torch.randn(1, batch.inputs.shape[1], model.cfg.d_vocab)
    (right, wrong) = batch.targets[0, 0, :, 0].tolist()
    difference = outputs[0, -1, right] - outputs[0, -1, wrong]
    assert float(one.logit_differences(outputs, batch)[0]) == pytest.approx(float(difference))
    assert float(one.example_losses(outputs, batch)) == pytest.approx(
        float(torch.log1p((-difference).exp())), rel=1e-4
    )


def test_nothing_to_recover_is_said(tmp_path, small):
    with pytest.raises(InputError, match="there is nothing to recover, use another"):
        ri.why(small.model, small.task, counterfactual=lambda batch, seed: batch)

    def near(batch, seed):
        """Asked for nearly the same: the loss is half as large again, and still next to nothing."""
        other = small.task.counterfactual(batch, seed)
        return replace(batch, inputs=torch.lerp(batch.inputs, other.inputs, 0.2))

    # A tenth of 0.75, the loss of knowing nothing.
    with pytest.raises(InputError, match="than 0.074., a tenth of what .* nothing to recover"):
        ri.why(small.model, small.task, counterfactual=near)
    with pytest.raises(InputError, match="expected prompts of the same length and padding"):
        ri.why(
            small.model,
            small.task,
            counterfactual=lambda batch, seed: replace(batch, inputs=batch.inputs[:, 1:]),
        )
    with pytest.raises(InputError, match="a model with a tokenizer, found none"):
        ri.why(small.model, "a = b", "a", "b")
    model = untrained_bridge("gpt2", tmp_path)
    with torch.no_grad():  # whatever it reads, it answers the same
        for parameter in model.parameters():
            parameter.zero_()
    with pytest.raises(InputError, match="expected another token in place of"):
        ask(model, SENTENCE, " Mary")
    with pytest.raises(InputError, match="keep: expected a share above 0 and below 1"):
        ri.why(small.model, small.task, keep=1.0)


@pytest.mark.parametrize("asked", [[SENTENCE], torch.tensor([1, 2]), 3])
def test_what_cannot_be_asked_is_refused(small, asked, without_type_checks):
    with pytest.raises(InputError, match="expected a prompt, a task or a list of ri.Pair"):
        ri.why(small.model, asked)


def test_prompts_too_few_to_tell_are_refused_with_that_reason(small):
    """A fall that is a tenth of what the model knows, but not two of its standard errors."""
    batch = small.task.sample(4, split="discovery")
    batch = with_counterfactual(small.model, batch, small.task.counterfactual(batch))
    recovery = Recovery(small.model, MetricTask(small.task), batch)
    recovery.nothing = recovery.intact - torch.tensor([4.0, -2.0, 3.0, -2.0])
    recovery.gap = 0.75
    with pytest.raises(InputError, match="two standard errors of the fall.* use more prompts"):
        recovery.check_gap()


def test_a_search_out_of_time_tells_what_it_has(monkeypatch, small):
    runs, metric = [], Recovery.metric
    monkeypatch.setattr(Recovery, "metric", lambda *a, **b: runs.append(1) or metric(*a, **b))
    for module in ("search", "units"):
        name = f"retrieval_interp.circuits.counterfactual.{module}.monotonic"
        monkeypatch.setattr(name, lambda: len(runs))
    for time, levels in ((3.0, 0), (16.0, 1), (1000.0, 3)):
        runs.clear()
        found = ri.why(small.model, small.task, time=time, examples=8, controls=2)
        assert len(found.levels) == levels
        assert ("time limit" in found.unfinished) == (levels < 3)
        assert ("when it was stopped" in found.unfinished) == (levels == 1)
        assert ("Nothing was found" in " ".join(found.finding)) == (not levels)


def test_another_half_of_the_pairs_is_reported(tmp_path):
    """Also its page: no request, every unit a row."""
    model = untrained_bridge("llama", tmp_path)
    task = ri.PairsTask(
        pairs({}, {"clean": SENTENCE.replace("drink", "store")}) * 4, model.tokenizer
    )
    metric = MetricTask(task)
    deciding, telling = (task.sample(4, split=split) for split in ("discovery", "test"))
    assert not torch.equal(deciding.inputs, telling.inputs)
    both = [with_counterfactual(model, b, task.counterfactual(b)) for b in (deciding, telling)]
    recovery = Recovery(model, metric, both[0])
    # Untrained: either way round, and little of it by attention.
    sign, base = 1.0 if recovery.gap > 0 else -1.0, float(recovery.nothing.mean())
    metric = MetricTask(task, lambda out, batch: sign * (task.logit_differences(out, batch) - base))
    search = KeepSearch(model, metric, both[0], keep=0.5)
    for _ in search:
        pass
    found = explain(model, metric, search, both[1], task.counterfactual(telling), controls=2)
    page = ri.why_view(found, model)
    assert page.html.count("<tr data-path=") == len(found.units) > 0
    assert "http" not in page.html.replace("http://www.w3.org", "").split("<script")[0]
    assert "\n".join(found.finding) in page.text


def test_the_command_explains(run_command_in_process, tmp_path, undocumented):
    argv = ["--model", "small", "--examples", "16", "--controls", "2", "--json", "why.json"]
    done = run_command_in_process("why", *argv, "--report", "why.html", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 100
    data = json.loads((tmp_path / "why.json").read_text())
    assert not undocumented(data) and data["schema"] == "retrieval-interp/why/1"
    assert data["levels"][-1]["units"] == ["L2.H0 s0<-s2", "L4.H0 s0<-s4"]
    assert data["levels"][-1]["kept"]["share"] > 0.9 and "L2.H0" in done.stdout
    assert data["units"][0]["enables"][0]["path"] == "L4.H0 s0<-s4"
    assert data["intact"]["loss"] > data["nothing"]["loss"]
    assert data["needed"] == [["L2.H0 s0<-s2"], ["L4.H0 s0<-s4"]]
    assert (tmp_path / "why.html").read_text().count("<tr data-path=") == 2


@pytest.mark.parametrize("seed", [0, 1])
def test_what_was_found_and_measured_on_the_same_prompt_says_so(small, seed):
    task = MetricTask(small.task)

    def drawn(seed):
        batch = small.task.sample(1, seed, split="test")
        other = small.task.counterfactual(batch)
        return with_counterfactual(small.model, batch, other), other

    search = KeepSearch(small.model, task, drawn(0)[0], upto="heads")
    assert [*search]
    found = explain(small.model, task, search, *drawn(seed), controls=0)
    assert "The counterfactual is: " in " ".join(found.finding)
    assert ("found and measured on the same prompt" in " ".join(found.finding)) == (seed == 0)


@pytest.mark.parametrize(
    "task",
    [
        ri.RetrievalTask(chains=3, steps=2, dim=4),
        ri.ConditionalRetrievalTask(chains=3, dim=4),
        ri.KHopTask(hops=2, alphabet=5),
        ri.EquationsTask(chains=3, steps=2),
    ],
    ids=lambda task: task.name,
)
def test_the_question_is_about_another_chain(task):
    batch = task.sample(4)
    asked, rewired = task.counterfactual(batch), task.rewired(batch)
    for other, roles in ((asked, [0]), (rewired, list(range(2, batch.roles.shape[-1], 2)))):
        changed = other.inputs != batch.inputs
        places = changed.any(-1) if batch.tokens is None else changed
        for example in range(4):
            allowed = set(batch.roles[example][:, roles].flatten().tolist())
            assert set(places[example].nonzero()[:, 0].tolist()) <= allowed
        assert bool(places.any(1).all()) and torch.equal(other.roles, batch.roles)
    width = task.symbol_width
    here, there = batch.roles[0, 0, 0], batch.roles[0, 1, 0]
    put, own = (x.inputs[0, at].view(-1)[:width] for x, at in ((asked, here), (batch, there)))
    assert torch.equal(put, own)
    if width is not None:  # encodings stay where they are
        assert torch.equal(asked.inputs[..., width:], batch.inputs[..., width:])


def test_repeated_tokens_are_not_repeated():
    task = ri.RepeatedTokensTask(length=6)
    batch = task.sample(3)
    other = task.counterfactual(batch).inputs
    assert torch.equal(other[:, :7], batch.inputs[:, :7])
    assert not torch.equal(other[:, 7:], batch.inputs[:, 7:])


def test_a_third_name_is_put_in_place():
    task = giving({"S2": ["Ann", "Bob", "Cid", "Dan"]})
    batch = task.sample(8)
    other = task.counterfactual(batch)
    place = batch.roles[:, 0, task.roles.index("S2")]
    for example in range(8):
        changed = (other.inputs != batch.inputs)[example].nonzero()[:, 0].tolist()
        assert changed == [int(place[example])]
        assert int(other.inputs[example, place[example]]) not in batch.inputs[example].tolist()
    resampled = giving()
    alike = resampled.counterfactual(batch)
    assert all(row.tolist() in batch.inputs.tolist() for row in alike.inputs)
    assert bool((alike.inputs != batch.inputs).any(1).all())
    with pytest.raises(InputError, match="expected another example with its roles at the same"):
        resampled.counterfactual(batch[:1])
    real = torch.tensor([[0, 1, 1], [1, 1, 1], [0, 1, 1], [1, 1, 1]])
    padded = ri.Batch(
        torch.arange(12).view(4, 3), torch.arange(4)[:, None], torch.full((4, 1, 1), 2), real
    )
    for seed in range(4):  # the one with the same padding
        other = ri.Task().counterfactual(padded, seed)
        assert torch.equal(other.inputs, padded.inputs[[2, 3, 0, 1]])
    with pytest.raises(InputError, match="the same padding"):
        ri.Task().counterfactual(padded[:2])
    with pytest.raises(InputError, match="counterfactual: expected one of END"):
        giving({"X": ["Ann"]})
    with pytest.raises(InputError, match="at least three words of one token for S2"):
        giving({"S2": ["Ann"]})
    with pytest.raises(InputError, match="expected at least two chains, found one"):
        one = ri.RetrievalTask(chains=1, steps=1)
        one.counterfactual(one.sample(2))
