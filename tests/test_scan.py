"""Scans: descriptions against loops and known patterns, losses against hooks set by hand."""

import json
import math

import pytest
import torch

import retrieval_interp as ri
from retrieval_interp.circuits.circuit import Circuit
from retrieval_interp.circuits.direct_effect import copy_scores, direct_effects
from retrieval_interp.circuits.head_kinds import attention_kinds, closest_rules, kind_by_attention
from retrieval_interp.circuits.losses import Scorer
from retrieval_interp.circuits.mechanisms import (
    AFTER_SAME,
    FIRST,
    IDENTITY,
    PREVIOUS,
    SAME,
    UNIFORM,
    OneHot,
    Positions,
)
from retrieval_interp.circuits.paths import Head
from retrieval_interp.circuits.replacement import ablated
from retrieval_interp.circuits.scan import scan
from retrieval_interp.tasks import InputError
from retrieval_interp.tasks.words.given_texts import NextTokenTask
from retrieval_interp.views.scan_view import (
    rule_words,
    scan_text,
    scan_to_dict,
    scan_verdict,
    scan_view,
)
from tests.browser import needs_chromium, page_in_chromium
from tests.built_by_hand import built, scores
from tests.models import FAMILIES, hooked_model, stock_transformer, untrained_bridge
from tests.naive import naive_losses
from tests.texts import SENTENCE, byte_pairs

pytestmark = pytest.mark.filterwarnings("ignore:scan. expected at least 8 sequences")

SEQUENCES = [[1, 2, 3, 1, 2, 4, 5], [6, 7, 6, 7, 8], [3, 3, 3, 9], [2, 9, 4, 2, 9]]


@pytest.fixture(scope="module")
def text():
    return NextTokenTask(SEQUENCES)


def test_heads_that_follow_rules_are_described_by_them(hooked, text):
    batch = text.whole()
    rules = {Head(0, 0): PREVIOUS, Head(0, 1): SAME, Head(1, 0): AFTER_SAME, Head(1, 1): FIRST}
    with ablated(hooked, Circuit(rules, 1), batch):
        closest = closest_rules(hooked, batch)
    assert {head: rule for head, (rule, _) in closest.items()} == rules
    assert [share for _, share in closest.values()] == pytest.approx([1.0] * 4)
    others = dict.fromkeys(rules, IDENTITY) | {Head(1, 1): UNIFORM}
    with ablated(hooked, Circuit(others, 1), batch):
        closest = closest_rules(hooked, batch)
    assert {head: rule for head, (rule, _) in closest.items()} == others


@torch.no_grad()
def test_shares_are_means_over_rows_without_padding(hooked, text):
    batch = text.whole()
    _, cache = hooked.run_with_cache(batch.inputs)
    for head, (rule, share) in closest_rules(hooked, batch).items():
        pattern = rule.pattern(Positions(batch.roles, 7, tokens=batch.tokens))
        shared = torch.minimum(cache["pattern", head.layer][:, head.head], pattern).sum(-1)
        rows = [row[: len(sequence)] for row, sequence in zip(shared, SEQUENCES)]
        assert share == pytest.approx(float(torch.cat(rows).mean()), abs=1e-5)


@torch.no_grad()
def test_losses_of_a_scan_equal_hooks_set_by_hand(hooked, text):
    found = scan(hooked, text)
    batch = text.sample(2, split="test")
    assert torch.equal(found.batch.inputs, batch.inputs) and not found.circuit.mechanisms
    intact = naive_losses(hooked, text, found.circuit, batch)
    for row in found.heads:
        for mechanism, measured in ((row.rule, row.change), (OneHot(), row.zero_ablated)):
            a, b = naive_losses(hooked, text, Circuit({row.head: mechanism}, 1), batch) - intact
            assert measured == pytest.approx((float(a + b) / 2, float(abs(a - b)) / 2), abs=1e-6)


def test_no_head_can_be_replaced_beside_those_of_the_joint_circuit():
    equations = ri.load_checkpoint("equations")
    found = scan(equations.model, equations.task, examples=32, joint=True)
    assert found.learned and found.finished and found.joint_loss <= found.tolerance
    assert 0 < len(found.circuit.mechanisms) < 6
    score = Scorer(equations.model, equations.task, found.batch)
    for row in found.heads:
        more = found.circuit.replace(row.head, row.rule)
        assert row.replaced is not None or score.loss(more) > found.tolerance


def test_an_induction_head_is_found_by_its_rule_where_roles_overlap():
    repeated = ri.load_checkpoint("repeated")
    found = scan(repeated.model, repeated.task, examples=32, joint=True)
    previous, induction = found.heads
    assert induction.rule == AFTER_SAME == induction.replaced and induction.share > 0.5
    assert (previous.kind, induction.kind) == ("", "induction head")
    room = found.tolerance - found.intact_loss
    assert induction.change.mean < room < previous.change.mean and found.kept > 0.95
    hops = ri.load_checkpoint("k-hop")  # some of its roles share a position in some examples
    assert scan(hops.model, hops.task, examples=32, joint=True).kept > 0.95


@torch.no_grad()
def assert_effects_are_theirs(model, folded, batch):
    """TransformerLens's direct logit attribution of every head, of a model with folded norms."""
    _, cache = folded.run_with_cache(batch.inputs)
    stack, asked = cache.stack_head_results(layer=-1), batch.targets >= 0
    attributed = cache.logit_attrs(stack, batch.targets.clamp(min=0)) * asked
    theirs = (attributed.sum(-1) / asked.sum(-1)).mean(-1).tolist()
    ours = [effect.mean for effect in direct_effects(model, batch).values()]
    assert ours == pytest.approx(theirs, abs=1e-6)


GATED = {"normalization_type": "RMS", "gated_mlp": True, "n_key_value_heads": 1}
ROTARY = {"positional_embedding_type": "rotary", "rotary_dim": 8}


@pytest.mark.parametrize("sizes", [{}, {"d_model": 15}, {"attn_only": True}, {**GATED, **ROTARY}])
def test_direct_effects_are_transformer_lenss(text, sizes):
    model, folded = hooked_model(**sizes), stock_transformer(**hooked_model(**sizes).cfg.to_dict())
    folded.load_and_process_state_dict(
        model.state_dict(), center_writing_weights=False, fold_value_biases=False
    )
    assert_effects_are_theirs(model, folded, text.whole())


@pytest.mark.parametrize("family", FAMILIES)
def test_direct_effects_of_a_bridge_are_transformer_lenss(family, text, tmp_path):
    bridge, folded = (untrained_bridge(family, tmp_path / name) for name in "ab")
    folded.enable_compatibility_mode(disable_warnings=True)
    assert_effects_are_theirs(bridge, folded, text.whole())


@torch.no_grad()
def test_a_norm_behind_attention_is_held_as_well(text):
    """TransformerLens's attribution leaves it out."""
    model, batch = hooked_model(**GATED, use_normalization_before_and_after=True), text.whole()
    _, cache = model.run_with_cache(batch.inputs)
    direction = (model.W_U.T[batch.targets.clamp(min=0)] - model.W_U.mean(1)) * model.ln_final.w
    direction, asked = direction / cache["ln_final.hook_scale"], batch.targets >= 0
    found = direct_effects(model, batch)
    for layer, block in enumerate(model.blocks):
        bias = block.attn.b_O * block.ln1_post.w / cache[f"blocks.{layer}.ln1_post.hook_scale"]
        by_heads = ((cache["attn_out", layer] - bias) * direction).sum(-1) * asked
        summed = sum(effect.mean for head, effect in found.items() if head.layer == layer)
        assert summed == pytest.approx(float((by_heads.sum(1) / asked.sum(1)).mean()), abs=1e-6)


def test_heads_built_by_hand_are_what_they_were_built_as():
    """One looks back and copies, one rests and writes against, one looks for the same token."""
    n_ctx, sharp, eye = 12, 200.0, torch.eye(9)
    previous, sink = torch.zeros(21, 21), torch.zeros(21, 21)
    previous[9:, 9:], sink[:, 9] = sharp * torch.eye(n_ctx).roll(-1, 1), sharp
    same = scores(n_ctx, *((token, token, sharp) for token in range(9)))
    same[9:, 9:] -= sharp / 2 * torch.eye(n_ctx)  # its own position less than earlier ones
    heads = [(previous, 3 * eye), (sink, -2 * eye), (same, eye.roll(1, 1))]
    model = built(n_ctx, heads, d_vocab=9, d_out=9)
    text = NextTokenTask([[8, 1, 2, 1, 2, 1], [8, 5, 5, 6, 6, 5]])
    kinds = [kind_by_attention(a) for a in attention_kinds(model, text, text.whole()).values()]
    assert kinds == ["previous", "first", "same"]
    uniform = built(n_ctx, [(torch.zeros(21, 21), eye)], d_vocab=9, d_out=9)
    (beyond,) = attention_kinds(uniform, text, text.whole()).values()
    assert max(map(abs, beyond.values())) < 1e-6  # half of the tokens may be delimiters
    assert [*copy_scores(model, torch.arange(8), 8).values()] == [1.0, 0.0, 0.0]
    # The token before comes next in three of five places, and in none. Of 3 a ninth is the mean.
    ours = direct_effects(model, text.whole())
    assert ours[Head(0, 0)] == pytest.approx((3 * 3 / 10 - 1 / 3, 0.9), abs=1e-4)
    # Nowhere does 8 come next.
    assert ours[Head(0, 1)] == pytest.approx((2 / 9, 0.0), abs=1e-4)


def test_text_is_cut_into_windows_of_the_models_tokens(hooked):
    tokenizer = byte_pairs(["a = b; b = 3; "] * 9)
    task = NextTokenTask.from_text("a = b; b = 3; " * 9, tokenizer, length=20)
    assert {sequence[0] for sequence in task.sequences} == {tokenizer.bos_token_id}
    lengths = [len(sequence) for sequence in task.sequences]
    assert max(lengths) <= 20 and max(lengths) - min(lengths) <= 1
    text = "".join(tokenizer.decode(sequence[1:]) for sequence in task.sequences)
    assert text == "a = b; b = 3; " * 9
    plain = NextTokenTask.from_text(["a = b", "b = 3; a = b"], tokenizer, prepend_bos=False)
    assert len(plain) == 2 and tokenizer.bos_token_id not in plain.sequences[0]
    with pytest.raises(InputError, match="expected words that the model's tokenizer knows"):
        scan(ri.load_checkpoint("equations").model, "Once upon a time")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("some words", "a tokenizer"),
        ([1, 99], "token ids .* from 0 to 12, .* found 1 to 99"),
        (torch.zeros(2, 14, dtype=torch.long), "at most 13 tokens.* found 14"),
    ],
)
def test_what_cannot_be_scanned_is_refused(hooked, given, message, without_type_checks):
    with pytest.raises(InputError, match=message):
        scan(hooked, given)


def test_models_that_predict_no_next_token_are_refused_text():
    both_ways = hooked_model(attention_dir="bidirectional")
    with pytest.raises(InputError, match="65 tokens and 64 outputs; give its task instead"):
        scan(ri.load_checkpoint("repeated").model, [1, 2, 3])
    with pytest.raises(InputError, match="later tokens; give its task instead"):
        scan(both_ways, [1, 2, 3])


def test_little_text_is_said_to_be_little(hooked):
    long = [[*range(12)]] * 50
    scan(hooked, long, time=0.0)  # and enough is not
    for few in (long[:7], long[:20], long[:1]):
        said = f"found {12 * len(few)} tokens in {len(few)} sequence.*give more"
        with pytest.warns(ri.InputWarning, match=said):
            scan(hooked, few, time=0.0)


def test_a_scan_in_bounded_time(monkeypatch, undocumented):
    equations = ri.load_checkpoint("equations")

    def scanned(time):
        """The clock ticks at each look."""
        clock = iter(range(100))
        monkeypatch.setattr("retrieval_interp.circuits.scan.monotonic", clock.__next__)
        return scan(equations.model, equations.task, examples=16, time=time, joint=True)

    found = scanned(0.5)
    assert not found.finished and not found.circuit.mechanisms and not found.tried
    assert all(math.isnan(row.change.mean) for row in found.heads)
    assert "none was tried" in scan_verdict(found)
    found = scanned(8.5)
    assert not found.finished and 0 < len(found.tried) < 6
    measured = [row for row in found.heads if not math.isnan(row.change.mean)]
    assert len(measured) == 4  # in the first half of the time, not by layer
    assert [row.head.layer for row in measured if row.change.mean > 1] == [0, 1, 5]
    text = scan_text(found, width=80)
    assert text.count(" not measured ") == 2 and "over before 2 heads could be" in text
    data = json.loads(json.dumps(scan_to_dict(found)))
    assert not undocumented(data, "scan", "why")  # its record is as that of why
    for row, own in zip(data["heads"], found.heads):
        assert row["measured"] == (own in measured) and row["tried"] == (own.head in found.tried)


@pytest.mark.browser
@needs_chromium
def test_a_page_shows_heads_sorts_and_filters(tmp_path):
    equations = ri.load_checkpoint("equations")
    found = scan(equations.model, equations.task, examples=16)
    path = scan_view(found, equations.model).save_html(tmp_path / "scan.html")
    assert path.stat().st_size < 100_000
    own = equations.model.run_with_cache(found.batch.inputs[:1])[1]["pattern", 3][0, 0]
    with page_in_chromium(viewport={"width": 390, "height": 900}) as (page, left):
        page.goto(path.as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        chosen, most = page.locator(".seen b"), max(found.heads, key=lambda row: row.change.mean)
        assert chosen.inner_text() == str(most.head)
        page.locator("button[data-path='L3.H0']").click()
        assert chosen.inner_text() == page.locator("tr.selected td").first.inner_text() == "L3.H0"
        rects = page.locator(".seen rect:not(.frame)").evaluate_all(
            "all => all.map(r => ['y', 'x', 'fill-opacity'].map(name => +r.getAttribute(name)))"
        )
        drawn = torch.zeros_like(own)
        for dest, src, weight in rects:
            drawn[int(dest) // 13, int(src) // 13] = weight
        torch.testing.assert_close(drawn, own, atol=1 / 255, rtol=0)
        page.locator("tr[data-path='L5.H0']").click()
        assert chosen.inner_text() == "L5.H0"

        def shown():
            rows = page.locator("tr[data-path]:visible").all()
            return [row.get_attribute("data-path") for row in rows]

        by_removed = sorted(found.heads, key=lambda row: -row.zero_ablated.mean)
        page.locator("th", has_text="zero-ablated").click()
        assert shown() == [str(row.head) for row in by_removed]
        page.locator("th", has_text="head").press("Enter")
        assert shown() == [f"L{layer}.H0" for layer in range(6)]
        page.locator("input").fill("l4")
        assert shown() == ["L4.H0"]
        assert left == [] and page.errors == []


def test_logits_that_would_take_much_memory_are_computed_in_parts(hooked, text, monkeypatch):
    whole = scan(hooked, text, joint=True)
    one_sequence = 13 * 7
    monkeypatch.setattr("retrieval_interp.circuits.hooks._MOST_LOGITS", one_sequence)
    parts = scan(hooked, text, joint=True)
    for one, other in zip(parts.heads, whole.heads):
        assert one.change == pytest.approx(other.change, abs=1e-6)
    assert parts.joint_loss == pytest.approx(whole.joint_loss)


def test_a_file_of_text_is_given_as_a_path_and_a_scan_prints_its_table(tmp_path):
    model = untrained_bridge("llama", tmp_path / "model")
    (tmp_path / "text.txt").write_text(f"{SENTENCE}. " * 20)
    found = ri.scan(model, tmp_path / "text.txt", length=16, time=0.0)
    read = ri.scan(model, f"{SENTENCE}. " * 20, length=16, time=0.0)
    assert torch.equal(found.batch.inputs, read.batch.inputs)
    assert repr(found) == scan_text(found) and "L1.H3" in repr(found)
    with pytest.raises(InputError, match=r"found the name of a file; give Path\('.*text.txt'\)"):
        ri.scan(model, str(tmp_path / "text.txt"))
    with pytest.raises(InputError, match=r"none.txt: expected a file of text, found: .*No such"):
        ri.scan(model, tmp_path / "none.txt")


def test_rules_with_paths_say_what_they_look_at(small):
    closest = closest_rules(small.model, small.task.sample(64, split="discovery"))
    words = [rule_words(rule, ()) for rule, _ in closest.values()]
    assert words[0] == "s2<-s1 s4<-s3 s6<-s5 and itself" and words[3] == "uniform"
    many = OneHot(tuple(ri.RolePath(dest, dest + 1) for dest in range(6)))
    assert rule_words(many, ()) == "s0<-s1 s1<-s2 s2<-s3 s3<-s4 and 2 others"
    assert rule_words(OneHot((ri.RolePath(1, 1),)), ()) == "itself"
