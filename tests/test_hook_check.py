"""Whether a hook changes one head and nothing else, on right hooks and on common mistakes."""

import pytest
import torch

import retrieval_interp as ri
from tests.test_model import bridge_of
from tests.test_own_model import hooked_model
from tests.test_why import FAMILIES, bridge

ALL, RIGHT = slice(None), "It changed L1.H1 and nothing else."
OTHERS = "It changed L1.H0, L1.H2 and L1.H3, too"
MIXED = f"{OTHERS}: blocks.1.hook_attn_out is after the heads are mixed."
NOTHING = "It changed nothing: it does not run, or has no effect."


@pytest.fixture(scope="module", params=[*FAMILIES, "hooked", "native"])
def model(request, tmp_path_factory):
    if request.param in FAMILIES:
        return bridge(request.param, tmp_path_factory.mktemp(request.param))
    hooked = hooked_model(n_heads=4, d_head=4)
    return hooked if request.param == "hooked" else bridge_of(hooked)


def zero(*index):
    """A hook that sets a part to zero in place, by default the second quarter of the last axis."""

    def hook(x, hook=None):
        x[index or (..., slice(x.shape[-1] // 4, x.shape[-1] // 2))] = 0

    return hook


def hooks_of(model):
    return [(len(part._forward_hooks), len(part._forward_pre_hooks)) for part in model.modules()]


def test_what_hooks_of_transformer_lens_did(model, request):
    outputs, head = model(torch.arange(6)[None]), zero(ALL, ALL, 1)
    before, native = hooks_of(model), request.node.callspec.id == "native"
    for part, function, wanted, said in (
        ("attn.hook_z", head, "L1.H1", RIGHT),
        ("attn.hook_q", head, "L1.H1", RIGHT),
        ("attn.hook_pattern", zero(ALL, 1), "L1.H1", NOTHING if native else RIGHT),
        ("attn.hook_z", head, "L0.H1", "It changed L1.H1, not L0.H1."),
        ("attn.hook_z", head, "L1.H2", "It changed L1.H1, not L1.H2."),
        ("attn.hook_z", zero(ALL, 1), "L1.H1", f"{OTHERS}, at position 1 alone."),
        ("hook_attn_out", zero(), "L1.H1", MIXED),
        ("hook_resid_post", zero(), "L1.H1", "It changed layer 1 after its heads, not L1.H1."),
        ("attn.hook_z", lambda z, hook: z + 0, "L1.H1", NOTHING),
    ):
        found = ri.check_hook(model, (f"blocks.1.{part}", function), wanted)
        assert (str(found), bool(found)) == (said, said == RIGHT)
    both = [(lambda name: name.endswith("attn.hook_z"), head)]
    assert str(ri.check_hook(model, both, "L0.H1")) == "It changed layer 1, too."
    embedding = ri.check_hook(model, ("hook_embed", zero()), "L0.H1")
    assert str(embedding) == "It changed what layer 0 reads, before L0.H1."
    assert hooks_of(model) == before and torch.equal(model(torch.arange(6)[None]), outputs)


@pytest.mark.parametrize("family", FAMILIES)
def test_hooks_of_pytorch_around_the_output_projection(family, tmp_path):
    """Its input is right, its output is not (thought-anchors #7, nnsight #525)."""
    model = bridge(family, tmp_path)
    part = model.blocks[1].attn.o.original_component
    found = ri.check_hook(
        model, lambda: part.register_forward_pre_hook(lambda _, given: zero()(given[0])), "L1.H1"
    )
    assert str(found) == RIGHT
    before = hooks_of(model)
    found = ri.check_hook(
        model, lambda: part.register_forward_hook(lambda _, given, x: zero()(x)), "L1.H1"
    )
    assert str(found) == f"{OTHERS}: its place is after the heads are mixed."
    assert found.changed == tuple(ri.Head(1, head) for head in range(4))
    assert hooks_of(model) == before


def test_values_that_heads_share_and_results_of_heads(tmp_path):
    """A key-value head is that of two heads of queries (pyvene #158)."""
    model = bridge("llama", tmp_path)
    values = ri.check_hook(model, ("blocks.1.attn.hook_v", zero(ALL, ALL, 0)), "L1.H1")
    assert str(values) == "It changed L1.H0, too."
    model.set_use_attn_result(True)
    for heads, said in (([1], RIGHT), ([1, 3], "It changed L1.H3, too.")):
        result = ("blocks.1.attn.hook_result", zero(ALL, ALL, heads))
        assert str(ri.check_hook(model, result, "L1.H1")) == said


def test_a_model_of_vectors_keeps_its_own_hooks_also_after_an_error():
    model, place = ri.load_checkpoint("small").model, "blocks.1.attn.hook_z"
    model.add_hook(place, lambda z, hook: z * 2)
    before = hooks_of(model)
    assert ri.check_hook(model, (place, zero(ALL)), "L1.H0")
    for hook, head, error in (
        ((place, zero(ALL, ALL, 5)), "L1.H0", "out of bounds"),
        ((f"{place}z", zero()), "L1.H0", "expected a name such as blocks.0.attn.hook_z, found"),
        ("place", "L1.H0", "expected .name, function. or a list of them, found .place"),
        ([], "L9.H0", "expected one from L0.H0 to L4.H0, found L9.H0"),
    ):
        with pytest.raises((ri.InputError, IndexError), match=error):
            ri.check_hook(model, hook, head)
    assert hooks_of(model) == before
