"""Tasks and models that are not this project's: tokens, HookedTransformer, TransformerBridge."""

import os
import re
import subprocess
import sys
from dataclasses import dataclass, replace
from html import unescape
from runpy import run_path
from types import SimpleNamespace

import pytest
import torch
from tokenizers.processors import TemplateProcessing

import retrieval_interp as ri
from retrieval_interp.circuits import Circuit, Head, Scorer, mechanisms
from retrieval_interp.circuits.hooks import ablated, probed
from retrieval_interp.circuits.mechanisms import Positions, pattern_of
from retrieval_interp.circuits.paths import Mask
from tests.models import Lookup, bridge_of, hooked_model, untrained_bridge
from tests.naive import naive_outputs
from tests.texts import SENTENCE, byte_pairs


@pytest.fixture(scope="module")
def task():
    return Lookup()


@pytest.fixture(scope="module")
def bridge(hooked):
    return bridge_of(hooked)


def test_what_a_bridge_shows_is_what_was_used(task, hooked, bridge):
    """It shows its pattern and does not use what a hook returns."""
    batch = task.sample(6, split="test")
    assert probed(hooked, batch).pattern_is_used and not probed(bridge, batch).pattern_is_used
    bench = ri.open(bridge, task, examples=8)
    bench.suppose("L0.H0 uniform", "L1.H0 cut s0<-s2")
    pattern = bench.attention(0, 0, with_circuit=True).data[0, 0]
    allowed = torch.ones(13, 13).tril()
    torch.testing.assert_close(pattern, allowed / allowed.sum(-1, keepdim=True))
    assert float(bench.roles(with_circuit=True).data[1, 0][0, 2]) == 0.0


@torch.no_grad()
def test_no_layer_is_left_out_where_that_would_change_the_numbers(task, hooked):
    """A hook of the user's in front of a layer, and positions that every layer adds anew."""
    batch = task.sample(6)
    circuit = ri.parse_circuit(["L1.H0 uniform"], task)
    hook = ("blocks.1.hook_resid_pre", lambda stream, hook: stream + 1.0)
    with hooked.hooks(fwd_hooks=[hook]):
        expected = task.example_losses(naive_outputs(hooked, circuit, batch), batch)
        found = Scorer(hooked, task, batch).losses(circuit)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    model = hooked_model(positional_embedding_type="shortformer", seed=1)
    expected = task.example_losses(naive_outputs(model, circuit, batch), batch)
    torch.testing.assert_close(Scorer(model, task, batch).losses(circuit), expected)


@torch.no_grad()
def test_what_enables_what_is_known_with_rotary_attention(task):
    """By the queries of the model with a path cut, and the keys of the intact one, or reversely."""
    model, batch = hooked_model(positional_embedding_type="rotary", rotary_dim=8), task.sample(8)
    cut, later = (ri.parse_head_path(text, task) for text in ("L0.H0 s2<-s1", "L1.H0 s0<-s2"))
    (found,) = ri.enabled_by(model, batch, [cut], [later], least_drop=-1.0)[cut]
    runs = []
    for circuit in (ri.parse_circuit([], task), ri.parse_circuit([], task).cut(cut)):
        with ri.ablated(model, circuit, batch):
            _, cache = model.run_with_cache(batch.inputs)
        runs.append([cache[f"blocks.1.attn.hook_rot_{side}"][:, :, 0] for side in "qk"])
    (q, k), (cut_q, cut_k) = runs
    example, dest, src = torch.arange(8)[:, None], batch.roles[:, :, 0], batch.roles[:, :, 2]
    for queries, keys, value in (
        (q, k, found.attention),
        (cut_q, cut_k, found.when_cut),
        (cut_q, k, found.by_query),
        (q, cut_k, found.by_key),
    ):
        scores = queries @ keys.mT / queries.shape[-1] ** 0.5
        hidden = torch.ones_like(scores).triu(1).bool()
        pattern = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        assert value == pytest.approx(float(pattern[example, dest, src].mean()), abs=1e-5)


def three_back(tokens):
    return torch.eye(len(tokens)).roll(3, 0).tril()


@pytest.mark.slow
def test_a_rule_of_ones_own_is_tried_by_search_and_scan(rules_kept):
    """On a trained head that looks three places back, which no built-in rule says."""
    names = run_path("examples/own_task.py")
    model, task, Here = (names[name] for name in ("model", "task", "Here"))
    made = ri.rule("three-back", three_back)
    assert ri.discover(model, Here(), examples=64)[Head(0, 0)] == made
    (head,) = ri.scan(model, task, examples=64).heads
    assert head.rule == made and head.share > 0.7  # the first three places have none before
    batch = Here().sample(4)
    circuit = ri.parse_circuit(["L0.H0 three-back"], Here())
    assert Circuit.from_json(circuit.to_json(), ("here",)) == circuit
    pattern = three_back(range(12)).expand(4, 1, 12, 12)
    hooks = [("blocks.0.attn.hook_pattern", lambda _, hook: pattern)]
    with torch.no_grad():
        expected = Here().example_losses(model.run_with_hooks(batch.inputs, fwd_hooks=hooks), batch)
    torch.testing.assert_close(Scorer(model, Here(), batch).losses(circuit), expected)
    # Made again, as when a cell of a notebook is run again, it takes the place of the first.
    again = ri.rule("three-back", three_back)
    assert [rule.kind for rule in mechanisms.RULES].count("three-back") == 1
    assert mechanisms.RULES[-1] is again


def test_a_rule_reads_words_and_no_padding(rules_kept):
    tokenizer = SimpleNamespace(decode=lambda ids: "abcdef"[ids[0]])
    seen = []

    def first(words):
        seen.append("".join(words))
        return [[1.0, *[0.0] * (len(words) - 1)] for _ in words]

    made = ri.rule("to-first", first, tokenizer)
    tokens, real = torch.tensor([[0, 1, 2], [3, 4, 5]]), torch.tensor([[1, 1, 1], [0, 1, 1]]).bool()
    positions = Positions(torch.zeros(2, 1, 1).long(), 3, Mask(), tokens, real)
    pattern = pattern_of(made, positions)
    assert seen == ["abc", "ef"]
    assert pattern[0].tolist() == [[1, 0, 0]] * 3 and pattern[1].tolist() == [
        [0] * 3,
        *[[0, 1, 0]] * 2,
    ]


@pytest.mark.parametrize("begins", [True, False])  # whether the tokenizer adds the first token
def test_a_program_of_text_and_tokenizer_is_a_rule(rules_kept, begins):
    """Attention to words of as many letters, to all later ones too; rows are scaled to 1."""
    tokenizer = byte_pairs(["a bb cc a"] * 9, 300)
    ids = tokenizer("<bos>a bb cc a")["input_ids"]
    if begins:
        tokenizer._tokenizer.post_processor = TemplateProcessing(
            single="<bos> $A", special_tokens=[("<bos>", tokenizer.bos_token_id)]
        )

    def same_length(sentence, tokenizer):
        ids = tokenizer([sentence], return_tensors="pt").input_ids[0].tolist()
        sizes = torch.tensor([len(tokenizer.decode([n]).strip()) for n in ids])
        return "same length", ((sizes[:, None] == sizes) & (sizes > 1)).numpy() * 2.0

    made = ri.rule("same-length", same_length, tokenizer)
    positions = Positions(torch.zeros(1, 1, 1).long(), len(ids), Mask(), torch.tensor([ids]))
    first = [1.0, *[0.0] * 4]
    third = [[0, 0, 1, 0, 0], [0, 0, 0.5, 0.5, 0]]
    assert pattern_of(made, positions)[0].tolist() == [first, first, *third, first]
    with pytest.raises(ri.InputError, match="same-length: expected a tokenizer, which"):
        ri.rule("same-length", same_length)
    for kind in ("", "two words"):
        with pytest.raises(ri.InputError, match="rule: expected one word and a function"):
            ri.rule(kind, same_length, tokenizer)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        (torch.ones(3, 3), r"expected a pattern \[1 or 4, 28, 28\], found \[3, 3\]"),
        (torch.ones(1, 28, 28), "at most 1 in a row, found 1 and 28"),
        (-torch.eye(28)[None], "of at least 0"),
        (torch.eye(28).roll(1, 1)[None], "no weight where the mask hides"),
    ],
)
def test_patterns_of_ones_own_are_checked(without_type_checks, rules_kept, small, pattern, message):
    class Wrong(mechanisms.Mechanism):
        kind = "wrong"

        def pattern(self, positions):
            return pattern

    batch = small.task.sample(4)
    circuit = Circuit({Head(1, 0): Wrong()}, batch.roles.shape[-1])
    for run in (ablated(small.model, circuit, batch), None):
        with pytest.raises(ri.InputError, match=f"wrong: .*{message}"):
            if run is None:
                Scorer(small.model, small.task, batch).losses(circuit)
            else:
                with run:
                    small.model(batch.inputs)


def test_a_mechanism_has_numbers_and_a_word_of_its_own(rules_kept):
    @dataclass(frozen=True)
    class Back(mechanisms.Rule):
        kind = "back"
        parameters = {"places": int}  # noqa: RUF012
        places: int = 1

        def targets(self, positions):
            return torch.ones_like(positions.allowed).tril(-self.places).triu(-self.places)

    circuit = Circuit({Head(0, 0): Back(3)}, 2)
    assert Circuit.from_json(circuit.to_json(), ("a", "b")) == circuit
    with pytest.raises(ri.InputError, match="Taken: .* of its own, .* found 'same', a built-in"):

        class Taken(mechanisms.Rule):
            kind = "same"

    with pytest.raises(ri.InputError, match="Nameless: expected a `kind` .* found none"):

        class Nameless(mechanisms.OneHot):
            pass


def test_a_strategy_of_ones_own_works_on_the_bench(small):
    def nothing(search):
        yield "nothing is tried"

    bench = ri.open("small", examples=8)
    bench.discover(strategy=nothing, time=60.0)
    assert not bench.circuit.mechanisms  # a search of its own finds four heads


class Named(Lookup):
    role_names = ("again", "first", "next")


@pytest.fixture
def named(hooked):
    return ri.open(hooked, Named(), examples=4)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("L1.H0 one-hot again<-first again<-next", "found again<-first and again<-next; use"),
        ("L1.H0 uniform again<-next", "expected no paths, found again<-next"),
        ("L1.H0 again<-nxt", "expected the role next, found 'nxt'"),
        ("L1.H0 AGAIN<-next", "expected the role again, found 'AGAIN'"),
        ("L1.H0 door<-next", r"s0 to s2 \(again, first, next\), found 'door'"),
        ("L1.H0 first<-next", "found first<-next: next comes later"),
    ],
)
def test_errors_have_the_tasks_names_of_roles(named, line, said):
    with pytest.raises(ri.InputError, match=said):
        named.suppose(line)


def test_circuits_and_scores_have_the_tasks_names_of_roles(named, tmp_path):
    named.suppose("L1.H0 again <- next\nL0.H1 one-hot", "L0.H1 s2<-s1")
    saved, circuit = named.save(tmp_path / "circuit.json"), named.circuit
    assert ri.parse_circuit(repr(circuit), Named()) == circuit
    assert named.undo() and named.load(saved) and named.circuit == circuit
    assert '["again", "next"]' in saved.read_text()
    score, cuts = named.score(controls=0).data, named.ablations().data.by_rise
    shown = repr((score.paths, score.heads, circuit.mechanisms, cuts))
    assert "again<-next" in shown and "next<-first" in shown and not re.search(r"s\d<-", shown)


def test_the_record_of_a_report_makes_it_again(named, tmp_path):
    """Apart from the date."""
    named.suppose("L1.H0 again<-next", "L0.H1 one-hot", "L0.H0 ~next<-first")
    first = named.report(tmp_path / "report.html").read_text()
    (call,) = re.findall(r"bench = ri\.open.*(?=bench\.report)", page_text(first))
    names = {"ri": ri, "model": named.model, "task": Named()}
    exec(call, names)
    again = names["bench"].report(tmp_path / "report.html").read_text()
    pages = [re.sub(r"[0-9T:-]{9,}|attention-\w+", "", page_text(page)) for page in (first, again)]
    assert pages[0] == pages[1]


def page_text(html):
    return unescape(re.sub("<.*?>", "", html))


def test_a_counterfactual_is_drawn_where_the_batch_has_none():
    task = Lookup()
    batch = task.sample(3, split="test")
    other = task.counterfactual(batch)
    asked, told = (other.inputs.gather(1, batch.roles[:, :, role]) for role in (0, 1))
    assert torch.equal(asked, told)  # each is an example with its roles where they were
    assert (other.inputs != batch.inputs).any(1).all()
    task.sample = lambda n, *_, **how: replace(
        Lookup().sample(n, *_, **how), targets=torch.ones(n, 1)
    )
    with pytest.raises(ri.InputError, match="none for 2 of 2 examples among 8192 more; give"):
        task.counterfactual(task.sample(2))


def without_split(self, n, seed=0, device="cpu"):
    raise AssertionError


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("sample", without_split, r"expected sample\(n, seed, device, split\), found sample\(n, "),
        ("vocabulary", ("a", "b"), "expected a vocabulary of more than 12 words, found 2"),
    ],
)
def test_what_a_task_lacks_is_said(hooked, name, value, said):
    with pytest.raises(ri.InputError, match=said):
        ri.open(hooked, type("Lacking", (Lookup,), {name: value})())


@pytest.mark.parametrize("name", ["role_labels", "role_symbols"])
def test_names_of_roles_that_do_not_fit_are_refused(task, hooked, name):
    class Short(type(task)):
        pass

    setattr(Short, name, ("one",))
    with pytest.raises(ri.InputError, match=f"expected {name} of .* roles, found 1"):
        ri.open(hooked, Short())


@pytest.mark.slow
def test_a_model_of_the_hub_is_opened_by_name_from_the_local_cache(tmp_path):
    cache = tmp_path / "hub" / "models--tiny--llama"
    untrained_bridge("llama", cache / "snapshots" / "abc")
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text("abc")
    (tmp_path / "t.txt").write_text(f"{SENTENCE} Mary. " * 4)
    offline = {**os.environ, "HF_HUB_CACHE": str(cache.parent), "HF_HUB_OFFLINE": "1"}
    for name, status, said in (
        ("hf:tiny/llama", 0, "hf:tiny/llama: the next token of"),
        ("hf:tiny/none", 2, "scan: hf:tiny/none: expected a causal language model"),
    ):
        command = ["-m", "retrieval_interp", "scan", "--model", name, "--text", "t.txt"]
        command = [sys.executable, *command, "--time", "5"]
        done = subprocess.run(command, cwd=tmp_path, env=offline, capture_output=True, text=True)
        assert (done.returncode, said in done.stdout + done.stderr) == (status, True), done.stderr
