"""What is kept of a counterfactual, and what it is estimated to be worth, against plain hooks."""

import pytest
import torch

import retrieval_interp as ri
from retrieval_interp.circuits.counterfactual.keep_search import Recovery
from retrieval_interp.circuits.counterfactual.origin import origins
from retrieval_interp.circuits.counterfactual.units import (
    MetricTask,
    Unit,
    estimate_units,
    patch_units,
    patching_part,
    prompts_at_once,
)
from retrieval_interp.tasks.sampling import SPLITS
from tests.models import FAMILIES, untrained_bridge
from tests.texts import byte_pairs


@pytest.fixture(scope="module", params=FAMILIES)
def model(request, tmp_path_factory):
    return untrained_bridge(request.param, tmp_path_factory.mktemp(request.param))


class Ending(ri.Task):
    """The token after the last one, with two named places before it."""

    role_names = ("END", "a", "b")
    scored_roles = (0,)

    def __init__(self, model):
        self.n_words = model.cfg.d_vocab

    def sample(self, n, seed=0, device="cpu", split="train", start=0):
        draw = torch.Generator().manual_seed(4 * seed + SPLITS.index(split))
        tokens = torch.randint(5, self.n_words, (n, 9), generator=draw)
        return ri.Batch(tokens, tokens[:, :1], torch.tensor([[8, 2, 5]]).repeat(n, 1, 1))

    def example_losses(self, outputs, batch):
        logits = self.answers(outputs, batch)[:, 0, 0]
        return -logits.log_softmax(-1).gather(-1, batch.targets)


def asked(model, n=4, same=0):
    """A task, examples that carry a counterfactual, and these others; they may begin alike."""
    task = Ending(model)
    batch, other = task.sample(n), task.sample(n, seed=1)
    other.inputs[:, :same] = batch.inputs[:, :same]
    return MetricTask(task), ri.with_counterfactual(model, batch, other), other


def metric_by_hooks(model, batch, hooks):
    outputs = model.run_with_hooks(batch.inputs, fwd_hooks=hooks)
    return -Ending(model).example_losses(outputs, batch)[:, 0]


def values(run, layer, n_heads):
    """A layer's values for every head, in a cache of `run_with_cache`."""
    v = run[f"blocks.{layer}.attn.hook_v"]
    return v.repeat_interleave(n_heads // v.shape[2], dim=2)


def noting(put):
    """Hooks that change z in both layers; `put` is called with it and what its run showed."""
    here = {}

    def note(x, hook):
        kind = "v" if x.shape[-1] != x.shape[-2] else "pattern"
        here[f"blocks.{hook.layer()}.attn.hook_{kind}"] = x

    def change(z, hook):
        return put(z.clone(), hook.layer(), here)

    return [
        (f"blocks.{layer}.attn.hook_{name}", hook)
        for layer in range(2)
        for name, hook in (("pattern", note), ("v", note), ("z", change))
    ]


def written_by_hand(cache, rest, edges):
    """Plain hooks by which heads write what they write in a cached run, but for some edges.

    Of an edge (layer, head, dest, src), as positions, it is said what is the cached run's: its
    attention ("pattern"), its values ("v"), both ("z") or neither; and of all others by `rest`.
    """

    def put(z, layer, here):
        runs = {True: cache, False: here}

        def attention(which):
            return runs[which in ("z", "pattern")][f"blocks.{layer}.attn.hook_pattern"]

        def read(which):
            return values(runs[which in ("z", "v")], layer, z.shape[2])

        new = torch.einsum("bhds,bshe->bdhe", attention(rest), read(rest))
        for (at, head, dest, src), which in edges.items():
            for sign, part in ((1, which), (-1, rest)) if at == layer else ():
                of_path = attention(part)[:, head, dest, src, None] * read(part)[:, src, head]
                new[:, dest, head] += sign * of_path
        return new

    return noting(put)


# A row of a, b or END, a path, and a head, as positions.
ROW = {Unit(ri.Head(0, 1), 2): [(0, 1, 5, src) for src in range(6)]}
LATE_ROW = {Unit(ri.Head(1, 1), 2): [(1, 1, 5, src) for src in range(6)]}
PATH = {Unit(ri.Head(1, 2), 0, 1): [(1, 2, 8, 2)]}
HEADS = [
    {Unit(ri.Head(1, head)): [(1, head, dest, src) for dest in range(9) for src in range(dest + 1)]}
    for head in range(4)
]


@pytest.mark.parametrize("patch", ["z", "pattern", "v"])
@torch.no_grad()
def test_what_is_kept_is_as_by_hand(model, patch):
    before = [point.has_hooks() for point in model.hook_dict.values()]
    metric, batch, other = asked(model, 6, same=4)  # where all is as in the run before
    recovery = Recovery(model, metric, batch, patch)
    every = [Unit(head) for head in recovery.heads]
    for units, expected in ((every, recovery.intact), ((), recovery.none_kept)):
        kept = recovery.metric(recovery.keeping(units))
        torch.testing.assert_close(kept, expected, atol=1e-5, rtol=0)
        lost = patch_units(recovery.empty, [u for u in every if u not in units], patch)
        torch.testing.assert_close(recovery.metric(lost), expected, atol=1e-5, rtol=0)
    plain = metric_by_hooks(model, batch, [])
    torch.testing.assert_close(recovery.intact, plain, atol=1e-5, rtol=0)

    _, cache = model.run_with_cache(other.inputs)
    units = ROW | PATH | HEADS[0]
    circuit = recovery.keeping(list(units))
    for measured, places in ((recovery.none_kept, {}), (recovery.metric(circuit), units)):
        edges = {place: "neither" for of_unit in places.values() for place in of_unit}
        expected = metric_by_hooks(model, batch, written_by_hand(cache, patch, edges))
        torch.testing.assert_close(measured, expected, atol=1e-5, rtol=0)
    assert [point.has_hooks() for point in model.hook_dict.values()] == before
    with pytest.raises(ri.InputError, match="expected a batch with the attention of"):
        with ri.ablated(model, circuit, Ending(model).sample(6)):
            model(batch.inputs)


@torch.no_grad()
def test_a_unit_without_its_attention_or_values_is_as_by_hand(model):
    """A path, a row and a head, of which only one of the two is the counterfactual's."""
    metric, batch, other = asked(model)
    recovery = Recovery(model, metric, batch)
    _, cache = model.run_with_cache(other.inputs)
    units = PATH | LATE_ROW | HEADS[3]
    for halved in units:
        for part in ("pattern", "v"):
            edges = {
                place: part if unit == halved else "neither"
                for unit, places in units.items()
                for place in places
            }
            expected = metric_by_hooks(model, batch, written_by_hand(cache, "z", edges))
            circuit = patching_part(recovery.empty, recovery.heads, list(units), halved, part)
            torch.testing.assert_close(recovery.metric(circuit), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@torch.no_grad()
def test_templates_of_two_lengths_in_half_precision(request, model, dtype, tmp_path):
    """All kept is the intact run; nothing kept is the run on the counterfactual prompts."""
    half = untrained_bridge(request.node.callspec.params["model"], tmp_path).to(dtype)
    words = ["cat", "dog", "sun", "sky", "one", "two"]
    texts = ["a {X} and a {Y}, then a", "so a {X} or a {Y}, and a {X2} then a"]
    read = [text.format(X="cat dog sun", Y="sky one two", X2="cat") for text in texts] * 3
    tokenizer = byte_pairs(read, vocab_size=model.cfg.d_vocab)
    fillings, how = {"X": words, "Y": words, "X2": "X"}, {"counterfactual": {"X": words}}
    task = ri.TemplateTask(texts, fillings, "X", "Y", tokenizer=tokenizer, **how)
    batch = task.sample(12)
    other = task.counterfactual(batch)
    assert len(batch.roles[:, 0, 0].unique()) == 2
    recovery = Recovery(half, MetricTask(task), ri.with_counterfactual(half, batch, other))
    every = recovery.keeping([Unit(head) for head in recovery.heads])
    assert torch.equal(recovery.metric(every), recovery.intact)
    plain = task.logit_differences(half(other.inputs), batch)
    rounding = {torch.float32: 1e-5, torch.bfloat16: 2**-6, torch.float16: 2**-9}[dtype]
    torch.testing.assert_close(recovery.none_kept, plain.float(), atol=rounding, rtol=rounding)
    estimates = estimate_units(half, MetricTask(task), recovery.batch)
    exact = estimate_units(model, MetricTask(task), ri.with_counterfactual(model, batch, other))
    assert (estimates.heads - exact.heads).norm() <= 8 * rounding * exact.heads.norm()


def test_estimates_of_a_few_prompts_at_a_time_are_the_same(model, monkeypatch):
    metric, batch, _ = asked(model, 5)
    whole, cfg = estimate_units(model, metric, batch), model.cfg
    room = 2.5 * cfg.n_layers * 9 * (16 * cfg.d_model + 2 * cfg.n_heads * 9)
    monkeypatch.setattr("retrieval_interp.circuits.counterfactual.units._BACKWARD_NUMBERS", room)
    assert prompts_at_once(model, batch) == 2
    for level, of_parts in zip(whole, estimate_units(model, metric, batch)):
        torch.testing.assert_close(level, of_parts, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
@torch.no_grad()
def test_estimates_are_slopes_by_hand(model, share):
    """Of a path and of a row, with all heads at a share of the way; and of both their parts."""
    metric, batch, other = asked(model)
    estimates = estimate_units(model, metric, batch, alphas=(share,))
    _, cache = model.run_with_cache(other.inputs)

    def moved(step, half, places):
        def move(z, layer, here):
            pattern = f"blocks.{layer}.attn.hook_pattern"
            new = torch.lerp(cache[f"blocks.{layer}.attn.hook_z"], z, share)
            for at, head, dest, src in places:
                if at == layer:
                    v, w = (values(run, layer, z.shape[2])[:, src, head] for run in (here, cache))
                    p, q = (run[pattern][:, head, dest, src, None] for run in (here, cache))
                    parts = {"where": (p - q) * (v + w) / 2, "what": (p + q) * (v - w) / 2}
                    new[:, dest, head] += step * parts[half]
            return new

        return metric_by_hooks(model, batch, noting(move))

    for unit, places in (PATH | ROW).items():
        for half, estimate in zip(("where", "what"), estimates.by_example(unit)):
            slope = (moved(0.01, half, places) - moved(-0.01, half, places)) / 0.02
            torch.testing.assert_close(estimate, slope, atol=2e-4, rtol=0.02)


@torch.no_grad()
def test_the_parts_of_a_path_add_up_to_what_it_brings(model):
    """And by hand, what the MLP of the first layer adds through the norm and values of the next."""
    metric, batch, other = asked(model)
    estimates = estimate_units(model, metric, batch)
    names = ("END", "a", "b")
    paths = [ri.HeadPath.parse(text, names) for text in ("L1.H2 END<-a", "L0.H1 END<-b")]
    found = origins(model, batch, other, paths, estimates.slopes)
    _, here = model.run_with_cache(batch.inputs)
    _, there = model.run_with_cache(other.inputs)

    def brought(path, src, change):
        """By its mean attention, a change of values [batch d_head], to where the answer is."""
        layer, head = path.head
        pattern = f"blocks.{layer}.attn.hook_pattern"
        half = (here[pattern] + there[pattern])[:, head, 8, src] / 2
        slope = estimates.slopes[layer][:, 8, head]
        return pytest.approx(float((half * (change * slope).sum(-1)).mean()), rel=1e-3, abs=1e-6)

    for path, src in zip(paths, (2, 5)):
        layer, head = path.head
        change = (values(here, layer, 4) - values(there, layer, 4))[:, src, head]
        assert found[path].total == brought(path, src, change)
        assert len(found[path].mlp) == len(found[path].attention) == layer
    path, (attn, norm), added = paths[0], (model.blocks[1].attn, model.blocks[1].ln1), []
    centred = getattr(norm, "bias", None) is not None
    for run in (here, there):
        middle, after = run["blocks.0.hook_resid_mid"], run["blocks.0.hook_resid_post"]
        mlp, x = (after - middle)[:, 2], after[:, 2]
        if centred:
            mlp, x = (part - part.mean(-1, keepdim=True) for part in (mlp, x))
        scale = (norm(after) - norm(torch.zeros_like(after)))[:, 2] / x
        added.append((mlp * scale) @ attn.W_V[2 * len(attn.W_V) // 4])
    assert found[path].mlp[0] == brought(path, 2, added[0] - added[1])
