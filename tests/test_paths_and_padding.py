"""What a path joins: absent roles, other chains, padding, against patterns written by hand."""

import json

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import retrieval_interp as ri
from retrieval_interp.circuits import mechanisms
from retrieval_interp.circuits.losses import Scorer
from retrieval_interp.circuits.means import mean_attention, mean_patterns
from retrieval_interp.circuits.paths import Mask, attention_along, path_mask
from tests.models import Lookup, bridge_of, hooked_model


def sources_by_hand(path, chains, number):
    """The positions that role `dest` of one chain attends to along a path, in a loop."""
    dest = chains[number][path.dest]
    found = set()
    for chain in chains:
        same = dest == chain[path.dest]  # such as a position that answers for several chains
        if same and dest >= 0 and chain[path.src] >= 0:
            found.add(chain[path.src])
    return found


def pattern_by_hand(paths, roles, n_positions):
    pattern = torch.zeros(len(roles), n_positions, n_positions)
    for example, chains in enumerate(roles.tolist()):
        for place in range(n_positions):
            rows = [
                found
                for number, chain in enumerate(chains)
                for path in paths
                if chain[path.dest] == place
                if (found := sources_by_hand(path, chains, number))
            ]
            for found in rows:
                for src in found:
                    pattern[example, place, src] += 1 / len(rows) / len(found)
    return pattern


some_paths = st.sets(st.builds(ri.RolePath, *[st.integers(0, 2)] * 2))
some_roles = st.lists(  # two examples of two chains of three roles in six positions, some absent
    st.lists(st.lists(st.integers(-1, 5), min_size=3, max_size=3), min_size=2, max_size=2),
    min_size=2,
    max_size=2,
)


@settings(max_examples=60)
@given(some_paths, some_roles, st.booleans())
def test_patterns_equal_the_definition_in_loops(paths, roles, causal):
    roles = torch.tensor(roles)
    if causal:  # a source of the own chain that comes later is refused
        paths = {p for p in paths if p.src == p.dest}
    one_source_each = len({path.dest for path in paths}) == len(paths)
    for kind in (mechanisms.Shared, mechanisms.OneHot) if one_source_each else (mechanisms.Shared,):
        pattern = kind(tuple(paths)).pattern(mechanisms.Positions(roles, 6, Mask(causal)))
        torch.testing.assert_close(pattern, pattern_by_hand(paths, roles, 6))


@settings(max_examples=40)
@given(some_paths, some_roles, st.booleans())
def test_cuts_and_means_equal_the_definition_in_loops(paths, roles, causal):
    roles = torch.tensor(roles)
    own = torch.rand(2, 6, 6, generator=torch.Generator().manual_seed(0))
    own = own.tril() if causal else own
    cut, kept = own.masked_fill(path_mask(paths, roles, 6), 0.0), own.clone()
    for path in paths:
        along = []
        for example, chains in enumerate(roles.tolist()):
            for number, chain in enumerate(chains):
                found = sources_by_hand(path, chains, number)
                for src in found:
                    kept[example, chain[path.dest], src] = 0
                if found:
                    along.append(sum(own[example, chain[path.dest], src] for src in found))
        mean, count = attention_along(own, path, roles)
        assert count == len(along)
        torch.testing.assert_close(mean, sum(along, torch.tensor(0.0)) / max(1, len(along)))
    torch.testing.assert_close(cut, kept)


class Sometimes(Lookup):
    """As Lookup, but every second chain lacks the key, and role names of its own."""

    role_names = ("query", "key", "value")

    def sample(self, *arguments, **options):
        batch = super().sample(*arguments, **options)
        roles = batch.roles.clone()
        roles[:, 1::2, 1] = -1
        return ri.Batch(batch.inputs, batch.targets, roles)


def test_absent_answers_are_zeros():
    class Asked(Sometimes):
        scored_roles = (1,)

    task = Asked()
    batch = task.sample(3)
    outputs = torch.rand(3, 13, 5)
    answers = task.answers(outputs, batch)
    assert answers[:, 1::2].abs().max() == 0
    at = batch.roles[:, ::2, 1]
    torch.testing.assert_close(answers[:, ::2, 0], outputs[torch.arange(3)[:, None], at])
    positions = batch.roles[:, :, 1].clamp(min=0)
    few = outputs[torch.arange(3)[:, None], positions]
    torch.testing.assert_close(task.answers(few, batch), answers)


class Everywhere(Lookup):
    """As many answers as positions, in another order."""

    scored_roles = (0,)

    def sample(self, *arguments, **options):
        batch = super().sample(*arguments, **options)
        order = torch.arange(12, -1, -1).expand(len(batch), -1)
        return ri.Batch(batch.inputs, batch.inputs, torch.stack([order, order, order], -1))

    def example_losses(self, outputs, batch):
        answers = self.answers(outputs, batch)[:, :, 0].transpose(1, 2)
        return F.cross_entropy(answers, batch.targets, reduction="none")


@torch.no_grad()
def test_as_many_answers_as_positions_are_not_taken_for_whole_sequences():
    task, model = Everywhere(), hooked_model()
    batch = task.sample(5)
    expected = F.cross_entropy(model(batch.inputs).flip(1).transpose(1, 2), batch.targets)
    assert Scorer(model, task, batch).base_losses.mean().item() == pytest.approx(expected.item())
    assert ri.attribute(model, task, batch).parts[0].losses.mean() == pytest.approx(expected.item())


@pytest.mark.parametrize(
    ("path", "names"),
    [(["value", "key"], None), (["s2", "s1"], None), (["c", "b"], ["a", "b", "c"])],
)
def test_files_are_read_with_the_tasks_names(path, names):
    """Also with those that the roles had before."""
    row = {"layer": 0, "head": 0, "mechanism": "one-hot", "paths": [path]}
    file = json.dumps({"heads": [row], **({"role_names": names} if names else {})})
    found = ri.Circuit.from_json(file, Sometimes.role_names)
    assert list(found.paths()) == [ri.parse_head_path("L0.H0 s2<-s1", 3)]


class Lengths(ri.Task):
    """Sequences of 4 to 9 tokens; the last says the first again. Padded left or right."""

    role_names = ("last", "first", "middle")
    loss_name = "cross entropy"
    vocabulary = (*"abcdefghij", "PAD")

    def __init__(self, side):
        self.side = side

    def sample(self, n, seed=0, device="cpu", split="train", start=0):
        start += 1000 * seed + (100 if split == "test" else 0)
        examples = [self.alone(number) for number in range(start, start + n)]
        tokens = torch.full((n, 9), 10)
        real, roles = torch.zeros(n, 9, dtype=torch.bool), torch.full((n, 1, 3), -1)
        for row, one in enumerate(examples):
            length = one.inputs.shape[1]
            begin = 9 - length if self.side == "left" else 0
            tokens[row, begin : begin + length] = one.inputs[0]
            real[row, begin : begin + length] = True
            roles[row] = torch.where(one.roles[0] < 0, -1, one.roles[0] + begin)
        targets = torch.cat([one.targets for one in examples])
        return ri.Batch(tokens, targets, roles, real).to(device)

    def alone(self, number):
        generator = torch.Generator().manual_seed(number)
        length = 4 + number % 6
        tokens = torch.randint(10, (1, length), generator=generator)
        middle = 2 if length > 5 else -1
        return ri.Batch(tokens, tokens[:, :1], torch.tensor([[[length - 1, 0, middle]]]))

    def example_losses(self, outputs, batch):
        last = outputs[torch.arange(len(batch)), batch.roles[:, 0, 0]]
        return F.cross_entropy(last, batch.targets[:, 0], reduction="none")[:, None]


def of_kind(kind):
    model = hooked_model()
    return model if kind == "hooked" else bridge_of(model)


MEAN = mechanisms.Mean(torch.arange(81.0).sin().view(9, 9).softmax(-1).tril())
MECHANISMS = [
    *(mechanisms.UNIFORM, mechanisms.IDENTITY, *mechanisms.RULES, MEAN),
    mechanisms.Shared((ri.RolePath(0, 1), ri.RolePath(0, 2))),
    mechanisms.Cut((ri.RolePath(0, 1), ri.RolePath(2, 1))),
    mechanisms.OneHot((ri.RolePath(0, 2),)),
    mechanisms.RoleMean((ri.RolePath(0, 1), ri.RolePath(0, 2)), (0.25, 0.5)),
]


@pytest.mark.parametrize("kind", ["hooked", pytest.param("bridge", marks=pytest.mark.slow)])
@pytest.mark.parametrize("side", [pytest.param("right", marks=pytest.mark.slow), "left"])
@torch.no_grad()
def test_padded_examples_have_the_losses_that_they_have_alone(side, kind):
    task, model = Lengths(side), of_kind(kind)
    scorer = Scorer(model, task, task.sample(12))
    singles = [Scorer(model, task, task.alone(number)) for number in range(12)]
    alone = torch.cat([one.base_losses for one in singles])
    torch.testing.assert_close(scorer.base_losses, alone, atol=1e-5, rtol=0)
    changed = 0
    for mechanism in MECHANISMS:
        for head in (ri.Head(0, 0), ri.Head(1, 1)):
            circuit = ri.Circuit({head: mechanism, ri.Head(1, 0): mechanisms.UNIFORM}, 3)
            losses = scorer.losses(circuit)
            expected = torch.cat([one.losses(circuit) for one in singles])
            torch.testing.assert_close(losses, expected, atol=1e-5, rtol=0)
            changed += not torch.allclose(losses, alone, atol=1e-4)
    assert changed > len(MECHANISMS)


@pytest.mark.parametrize("side", ["right", "left"])
def test_means_of_padded_batches_are_those_of_single_examples(side):
    task, model = Lengths(side), hooked_model()
    batch = task.sample(12)
    total, count = torch.zeros(2, 2, 9, 9), torch.zeros(9)
    by_role, seen = torch.zeros(2, 2), 0
    for number in range(12):
        one = task.alone(number)
        length = one.inputs.shape[1]
        total[:, :, :length, :length] += mean_patterns(model, one)
        count[:length] += 1
        by_role += mean_attention(model, one)[:, :, 0, 2]
        seen += length > 5
    mean = mean_patterns(model, batch)
    torch.testing.assert_close(mean, total / count[None, None, :, None], atol=1e-5, rtol=0)
    found = mean_attention(model, batch)[:, :, 0, 2]
    torch.testing.assert_close(found, by_role / seen, atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", ["hooked", "bridge"])
@pytest.mark.parametrize("side", ["right", "left"])
def test_estimates_of_padded_batches_are_the_means_of_single_examples(side, kind):
    """Gradients, too, come through rows that see nothing."""
    task, model = Lengths(side), of_kind(kind)
    batch, singles = task.sample(12), [task.alone(number) for number in range(12)]
    in_place = {ri.Head(0, 1): mechanisms.SAME, ri.Head(1, 0): mechanisms.Cut((ri.RolePath(0, 1),))}
    for base in (ri.Circuit({}, 3), ri.Circuit(in_place, 3)):
        padded = ri.attribute(model, task, batch, base, draws=0)
        alone = [ri.attribute(model, task, one, base, draws=0) for one in singles]
        for mechanism in MECHANISMS:
            for head in (ri.Head(0, 0), ri.Head(1, 1)):
                circuit = base.replace(head, mechanism)
                expected = sum(one.estimate(circuit).first for one in alone) / 12
                found = padded.estimate(circuit).first
                assert found == pytest.approx(expected, abs=1e-5) and found != 0


@pytest.mark.parametrize("kind", ["hooked", "bridge"])
@pytest.mark.parametrize("side", ["right", "left"])
def test_enabled_paths_of_padded_batches_are_those_of_single_examples(side, kind):
    """The first row, which stands in for an absent destination, is padding on the left."""
    task, model = Lengths(side), of_kind(kind)
    cut = ri.parse_head_path("L0.H0 s0<-s1", 3)
    later = [ri.parse_head_path(f"L1.H{text}", 3) for text in ("0 s0<-s2", "1 s2<-s1", "1 s0<-s1")]

    def enabled(batch):
        rows = ri.enabled_by(model, batch, [cut], later, least_drop=-1.0)[cut]
        return {row.path: torch.tensor([row.attention, row.when_cut]) for row in rows}

    padded = enabled(task.sample(12))
    alone = {number: enabled(task.alone(number)) for number in range(12)}
    for path in later:
        present = [n for n in alone if 2 not in path.path or 4 + n % 6 > 5]
        expected = torch.stack([alone[number][path] for number in present]).mean(0)
        torch.testing.assert_close(padded[path], expected, atol=1e-5, rtol=0)


def test_padding_that_cannot_be_is_refused():
    task, model = Lengths("right"), hooked_model()
    batch = task.sample(4)
    holes = batch.attention_mask.clone()
    holes[2, 1] = False

    def refused(text, **changes):
        fields = {"attention_mask": batch.attention_mask, "roles": batch.roles, **changes}
        with pytest.raises(ri.InputError, match=text):
            Scorer(model, task, ri.Batch(batch.inputs, batch.targets, **fields))

    refused("padding before or after .* in example 2", attention_mask=holes)
    refused("in example 3", attention_mask=batch.attention_mask & (torch.arange(4) < 3)[:, None])
    refused("roles at real positions.* in example 0", roles=torch.full((4, 1, 3), 6))
