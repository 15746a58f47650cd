"""Rules and mechanisms of one's own: in runs, searches, scans and files, and what is refused."""

from dataclasses import dataclass
from pathlib import Path
from runpy import run_path
from types import SimpleNamespace

import pytest
import torch
from tokenizers.processors import TemplateProcessing

import retrieval_interp as ri
from retrieval_interp.circuits import Circuit, Head, Scorer, mechanisms
from retrieval_interp.circuits.circuit import suppose
from retrieval_interp.circuits.paths import Mask
from retrieval_interp.views.score_text import mechanism_words
from tests.built_by_hand import LastMark, passing_model
from tests.models import randomize
from tests.naive import naive_outputs
from tests.texts import byte_pairs

EXAMPLE = Path(__file__).parent.parent / "examples" / "own_task.py"


def three_back(tokens):
    """Three places before."""
    return torch.eye(len(tokens)).roll(3, 0).tril()


@pytest.mark.slow
def test_a_rule_of_ones_own_is_tried_by_search_and_scan(rules_reset):
    """On a trained head that looks three places back, which no built-in rule says."""
    names = run_path(str(EXAMPLE))
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
    assert mechanism_words([again]) == "three-back: three places before."


def test_a_rule_reads_words_and_no_padding(rules_reset):
    tokenizer = SimpleNamespace(decode=lambda ids: "abcdef"[ids[0]])
    seen = []

    def first(words):
        seen.append("".join(words))
        return [[1.0, *[0.0] * (len(words) - 1)] for _ in words]

    made = ri.rule("to-first", first, tokenizer)
    tokens, real = torch.tensor([[0, 1, 2], [3, 4, 5]]), torch.tensor([[1, 1, 1], [0, 1, 1]]).bool()
    positions = mechanisms.Positions(torch.zeros(2, 1, 1).long(), 3, Mask(), tokens, real)
    pattern = mechanisms.pattern_of(made, positions)
    assert seen == ["abc", "ef"]
    assert pattern[0].tolist() == [[1, 0, 0]] * 3
    assert pattern[1].tolist() == [[0, 0, 0], [0, 1, 0], [0, 1, 0]]


@pytest.mark.parametrize("begins", [True, False])  # whether the tokenizer adds the first token
def test_a_program_of_text_and_tokenizer_is_a_rule(rules_reset, begins):
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
    no_roles, tokens = torch.zeros(1, 1, 1).long(), torch.tensor([ids])
    positions = mechanisms.Positions(no_roles, len(ids), Mask(), tokens)
    first = [1.0, *[0.0] * 4]
    third = [[0, 0, 1, 0, 0], [0, 0, 0.5, 0.5, 0]]
    assert mechanisms.pattern_of(made, positions)[0].tolist() == [first, first, *third, first]
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
def test_patterns_of_ones_own_are_checked(
    without_type_checks, rules_reset, small, pattern, message
):
    @dataclass(frozen=True)
    class Wrong(mechanisms.Mechanism):
        kind = "wrong"

        def pattern(self, positions):
            return pattern

    batch = small.task.sample(4)
    circuit = Circuit({Head(1, 0): Wrong()}, batch.roles.shape[-1])
    with pytest.raises(ri.InputError, match=f"wrong: .*{message}"):
        Scorer(small.model, small.task, batch).losses(circuit)
    with pytest.raises(ri.InputError, match=f"wrong: .*{message}"):
        with ri.ablated(small.model, circuit, batch):
            small.model(batch.inputs)


def test_a_mechanism_has_numbers_and_a_word_of_its_own(rules_reset):
    @dataclass(frozen=True)
    class Back(mechanisms.Rule):
        kind = "back"
        places: int = 1
        strict: bool = False
        label: str = ""

        def targets(self, positions):
            return torch.ones_like(positions.allowed).tril(-self.places).triu(-self.places)

    circuit = Circuit({Head(0, 0): Back(3, True, "7")}, 2, role_names=("a", "b"))
    assert Circuit.from_json(circuit.to_json()) == circuit
    assert str(circuit) == "L0.H0 back places=3 strict=true label=7" and str(Back()) == "back"
    assert suppose(Circuit.empty(LastMark()), str(circuit))[0, 0] == Back(3, True, "7")
    for words, message in (
        ("by=3", "back: expected places= or strict= or label=, found 'by=3'"),
        ("places=x", "places: expected an integer, found 'x'"),
        ("places=1.5", "places: expected an integer, found 1.5"),
        ("END<-mark", "back: expected no paths"),
    ):
        with pytest.raises(ri.InputError, match=message):
            suppose(Circuit.empty(LastMark()), f"L0.H0 back {words}")
    with pytest.raises(ri.InputError, match="Taken: .* of its own, .* found 'same', a built-in"):

        class Taken(mechanisms.Rule):
            kind = "same"

    with pytest.raises(ri.InputError, match="Nameless: expected a `kind` .* found none"):

        class Nameless(mechanisms.OneHot):
            pass

    with pytest.raises(ri.InputError, match="Costly: expected a `cost` of two numbers, .* found 1"):

        class Costly(mechanisms.Rule):
            kind = "costly"
            cost = 1


@dataclass(frozen=True)
class WeakOneHot(mechanisms.WithPaths):
    """Three tenths of a one-hot head."""

    kind = "three-tenths"
    follows_paths = True

    def pattern(self, positions):
        return 0.3 * mechanisms.OneHot(self.paths).pattern(positions)


@dataclass(frozen=True)
class WeakShared(mechanisms.Shared):
    kind = "weak-shared"

    def pattern(self, positions):
        return 0.3 * super().pattern(positions)


@dataclass(frozen=True)
class Weakened(mechanisms.Mechanism):
    """A tenth of the head's own attention."""

    kind = "weakened"
    keeps_own = True

    def changed(self, pattern, roles):
        return 0.1 * pattern


@dataclass(frozen=True)
class CutTwice(mechanisms.Cut):
    """The head's own attention along its paths turned over."""

    kind = "cut-twice"

    def changed(self, pattern, roles):
        return 2 * super().changed(pattern, roles) - pattern


@dataclass(frozen=True)
class HalfOutput(mechanisms.Mechanism):
    """Half of what the head writes."""

    kind = "half-output"
    replaces_output = True

    def output(self, here, there, roles):
        return here.z / 2


to_two = (ri.RolePath(0, 2), ri.RolePath(4, 3))
own_mechanisms = WeakOneHot(to_two), WeakShared(to_two), Weakened(), CutTwice(to_two), HalfOutput()


@pytest.mark.parametrize("mechanism", own_mechanisms, ids=lambda mechanism: mechanism.kind)
def test_a_mechanism_of_ones_own_loses_what_it_loses_with_hooks(mechanism, task, model):
    """A scorer of vectors, which knows built-in mechanisms by role, has to run any other."""
    model, batch, head = randomize(model), task.sample(4, seed=3), Head(1, 0)
    circuit = Circuit({head: mechanism, Head(2, 1): mechanisms.UNIFORM}, 5)

    def halve(z, hook):
        z[:, :, 0] /= 2

    if mechanism.replaces_output:
        with model.hooks(fwd_hooks=[("blocks.1.attn.hook_z", halve)]):
            outputs = naive_outputs(model, circuit.replace(head, mechanisms.ORIGINAL), batch)
    else:
        outputs = naive_outputs(model, circuit, batch)
    expected = task.example_losses(outputs, batch)
    scorer = Scorer(model, task, batch)
    intact = scorer.base_losses
    assert scorer.runs.are_cheap and (expected.mean(1) - intact.mean(1)).abs().max() > 1e-3
    torch.testing.assert_close(scorer.losses(circuit), expected, atol=1e-5, rtol=0)
    scorer.losses(circuit, as_base=True)
    torch.testing.assert_close(scorer.base_losses, expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(scorer.losses(scorer.empty_circuit), intact, atol=1e-5, rtol=0)


def test_a_mechanism_of_ones_own_keeps_its_kind_when_its_paths_change(without_type_checks):
    search = ri.Search(passing_model(), LastMark(), ri.SearchOptions(examples=32))
    head, paths = Head(0, 0), ((0, 0), (1, 1), (2, 2))
    start = Circuit({head: WeakOneHot(paths)}, 3)
    options = search.neighbours_of(start, head)
    fewer, more = WeakOneHot(paths[1:]), WeakOneHot(paths[:1]).adding(*start[head].paths[1:])
    assert more == start[head] and fewer in options and mechanisms.OneHot(paths[1:]) not in options
    # Contributions add up the changes of rows, here of all three.
    estimates = ri.attribute(search.model, search.task, search.batch, start)
    (part,) = estimates.parts
    for mechanism in (fewer, WeakOneHot(()), mechanisms.OneHot(paths)):
        change = mechanism.pattern(part.positions[0]) - part.used[0][:, 0]
        expected = float((part.of_loss[0][:, 0] * change).sum((1, 2)).mean())
        assert estimates.change(head, mechanism).first == pytest.approx(expected, abs=1e-6)


def test_a_mechanism_along_paths_is_tried_along_those_of_the_head(rules_reset):
    mechanisms.RULES.append(WeakOneHot())
    search = ri.Search(passing_model(), LastMark(), ri.SearchOptions(examples=32))
    tried = {
        option.paths for option in search.space.candidates[0, 0] if option.kind == "three-tenths"
    }
    assert tried == {start[0, 0].paths for start in search.starts}
