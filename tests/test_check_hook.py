"""Whether a hook changes one head and nothing else."""

import pytest
import torch

import retrieval_interp as ri
from tests.models import FAMILIES, bridge_of, hooked_model, untrained_bridge

ALL, RIGHT = slice(None), "It changed L1.H1 and nothing else."
OTHERS = "It changed L1.H0, L1.H2 and L1.H3, too"
NOTHING = "It changed nothing: it does not run, or has no effect."


def zero(*index):
    """A hook that sets a part to zero in place, by default the second quarter of the last axis."""

    def hook(x, hook=None):
        x[index or (..., slice(x.shape[-1] // 4, x.shape[-1] // 2))] = 0

    return hook


def hooks_of(model):
    return [(len(part._forward_hooks), len(part._forward_pre_hooks)) for part in model.modules()]


@pytest.mark.parametrize("kind", [*FAMILIES, "hooked", "native"])
def test_what_a_hook_did(kind, tmp_path):
    """Mistakes of thought-anchors #7, nnsight #525 and pyvene #158 among them."""
    model = (
        untrained_bridge(kind, tmp_path) if kind in FAMILIES else hooked_model(n_heads=4, d_head=4)
    )
    model = bridge_of(model) if kind == "native" else model
    outputs, head, z = model(torch.arange(6)[None]), zero(ALL, ALL, 1), "blocks.1.attn.hook_z"
    before, pattern = hooks_of(model), z.replace("_z", "_pattern")
    hooks = [
        ((z, head), "L1.H1", RIGHT),
        ((z.replace("_z", "_q"), head), "L1.H1", RIGHT),
        ((pattern, zero(ALL, 1)), "L1.H1", NOTHING if kind == "native" else RIGHT),
        ((z, head), "L0.H1", "It changed L1.H1, not L0.H1."),
        ((z, zero(ALL, 1)), "L1.H1", f"{OTHERS}, at position 1 alone."),
        (("blocks.1.hook_attn_out", zero()), "L1.H1", f"{OTHERS}: blocks.1.hook_attn_out is after"),
        (("blocks.1.hook_resid_post", zero()), "L1.H1", "It changed layer 1 after its heads, not"),
        ((z, lambda z, hook: z + 0), "L1.H1", NOTHING),
        ([(lambda name: name.endswith("attn.hook_z"), head)], "L0.H1", "It changed layer 1, too."),
        (("hook_embed", zero()), "L0.H1", "It changed what layer 0 reads, before L0.H1."),
    ]
    if kind in FAMILIES:
        part = model.blocks[1].attn.o.original_component
        before_mix = lambda: part.register_forward_pre_hook(lambda _, given: zero()(given[0]))  # noqa: E731
        after = lambda: part.register_forward_hook(lambda _, given, x: zero()(x))  # noqa: E731
        hooks += [(before_mix, "L1.H1", RIGHT), (after, "L1.H1", f"{OTHERS}: its place is after")]
    if kind == "llama":  # whose heads share values in pairs
        hooks.append(((z.replace("_z", "_v"), zero(ALL, ALL, 0)), "L1.H1", "It changed L1.H0, too"))
    for hook, wanted, said in hooks:
        found = ri.check_hook(model, hook, wanted)
        assert str(found).startswith(said) and bool(found) == (said == RIGHT), found
    assert hooks_of(model) == before and torch.equal(model(torch.arange(6)[None]), outputs)
    if kind == "llama":
        model.set_use_attn_result(True)
        two = (z.replace("_z", "_result"), zero(ALL, ALL, [1, 3]))
        assert str(ri.check_hook(model, two, "L1.H1")) == "It changed L1.H3, too."


def test_a_model_of_vectors_keeps_its_own_hooks_also_after_an_error():
    model, place = ri.load_checkpoint("small").model, "blocks.1.attn.hook_z"
    model.add_hook(place, lambda z, hook: z * 2)
    model(torch.zeros(1, 2, len(model.W_E)))  # a bridge sets hooks of its own when it first runs
    before = hooks_of(model)
    assert ri.check_hook(model, (place, zero(ALL)), "L1.H0").changed == (ri.Head(1, 0),)
    for hook, head, error in (
        ((place, zero(ALL, ALL, 5)), "L1.H0", "out of bounds"),
        ((f"{place}z", zero()), "L1.H0", "expected a name such as blocks.0.attn.hook_z, found"),
        ("place", "L1.H0", "expected .name, function. or a list of them, found 'place'"),
        ([], "L9.H0", "expected one from L0.H0 to L4.H0, found L9.H0"),
    ):
        with pytest.raises((ri.InputError, IndexError), match=error):
            ri.check_hook(model, hook, head)
    assert hooks_of(model) == before
