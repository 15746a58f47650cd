"""What tasks lose without each head."""

import pytest
import torch

import retrieval_interp as ri
from tests.models import needs_hooked_transformer


@pytest.fixture(scope="module")
def atlas(small):
    return ri.atlas(small.model, {"one": small.task, "again": small.task}, max_heads=4)


@needs_hooked_transformer  # whose names of hooks are used
@torch.no_grad()
def test_what_is_lost_is_as_by_plain_hooks(small, atlas):
    model, task = small.model, small.task
    batch = task.sample(32, split="test")
    _, there = model.run_with_cache(task.counterfactual(batch, 0).inputs)
    here = {}

    def loss(heads, patch="z"):
        """The mean loss where these heads take this from the counterfactual."""

        def put(z, hook):
            attn = f"blocks.{hook.layer()}.attn."
            pattern = (here if patch == "v" else there)[f"{attn}hook_pattern"]
            values = (here if patch == "pattern" else there)[f"{attn}hook_v"]
            for layer, head in heads:
                if layer == hook.layer():
                    z[:, :, head] = pattern[:, head] @ values[:, :, head]
            return z

        def note(activation, hook):
            here[hook.name] = activation

        hooks = [(lambda name: name.endswith(("hook_pattern", "hook_v")), note)]
        hooks += [(lambda name: name.endswith("hook_z"), put)]
        return task.loss(model.run_with_hooks(batch.inputs, fwd_hooks=hooks), batch).item()

    intact, gap = loss([]), loss([(layer, 0) for layer in range(5)]) - loss([])
    assert atlas.gaps["one"] == pytest.approx(gap, rel=1e-4)
    for head, lost in atlas.lost["one"].items():
        parts = {"z": lost.output, "pattern": lost.attention, "v": lost.values}
        for patch, part in parts.items():
            if part is not None:
                by_hand = (loss([head], patch) - intact) / gap
                assert part.share == pytest.approx(by_hand, abs=1e-5)
    # Those of its circuit; L1.H0 and L3.H0 do next to nothing.
    served = {str(head) for head in atlas.heads if atlas.served(head) == ["one", "again"]}
    assert served == {"L0.H0", "L2.H0", "L4.H0"}
    assert all(atlas.lost["one"][head].values for head in atlas.heads if atlas.served(head))


def test_likeness_is_the_mean_jaccard_index_between_halves():
    a, b, c, d = (ri.Head(0, number) for number in range(4))
    halves = {
        "one": (frozenset({a, b, c}), frozenset({a, b})),
        "other": (frozenset({a, d}), frozenset()),
    }
    atlas = ri.Atlas((a, b, c, d), {}, halves, {}, 0.05)
    assert atlas.likeness("one", "one") == pytest.approx(2 / 3)
    assert atlas.likeness("one", "other") == pytest.approx((1 / 4 + 1 / 3) / 4)
    assert atlas.likeness("other", "other") == 0


def test_an_atlas_is_shown(atlas, tmp_path):
    text, page = str(atlas), ri.atlas_view(atlas).save_html(tmp_path / "atlas.html").read_text()
    first = next(line for line in text.splitlines() if line.startswith("L"))
    assert all(cell in page for cell in first.split()) and "http" not in page


@pytest.mark.parametrize("tasks", [{}, [0], {1: 2}])
def test_tasks_without_names_are_refused(without_type_checks, small, tasks):
    with pytest.raises(ri.InputError, match="expected tasks by name"):
        ri.atlas(small.model, tasks)
    with pytest.raises(ri.InputError, match="at least 4 examples"):
        ri.atlas(small.model, {"one": small.task}, examples=1)
