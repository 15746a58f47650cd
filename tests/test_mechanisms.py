import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from retrieval_interp.circuits.attention import attention_pattern
from retrieval_interp.circuits.circuit import IDENTITY, UNIFORM, Mechanism, RolePath
from retrieval_interp.tasks import InputError, RetrievalTask

TASK = RetrievalTask(chains=3, steps=2, dim=2)
# Sequence order of the roles when D = 2: a source may not come after its destination.
ORDER = {3: 0, 4: 1, 1: 2, 2: 3, 0: 4}
PATHS = [(dest, src) for dest in range(5) for src in range(5) if ORDER[src] <= ORDER[dest]]


def reference_pattern(paths, roles, n_positions, rest):
    """The definition in loops: a row for each position, a share for each source."""
    pattern = torch.zeros(len(roles), n_positions, n_positions)
    for example in range(len(roles)):
        for dest in range(n_positions):
            sources = []
            for chain in roles[example].tolist():
                for path in paths:
                    if chain[path[0]] == dest:
                        sources.append(chain[path[1]])
            if not sources and rest == "uniform":
                sources = list(range(dest + 1))
            if not sources and rest == "identity":
                sources = [dest]
            for src in sources:
                pattern[example, dest, src] += 1 / len(sources)
    return pattern


@settings(max_examples=40, deadline=None)
@given(st.sets(st.sampled_from(PATHS)), st.sampled_from(["zero", "uniform", "identity"]))
def test_shared_patterns_equal_the_definition(paths, rest):
    batch = TASK.sample(3, seed=1)
    mechanism = Mechanism("shared", tuple(RolePath(*path) for path in paths))
    pattern = attention_pattern(mechanism, batch.roles, TASK.n_positions, rest=rest)
    expected = reference_pattern(paths, batch.roles, TASK.n_positions, rest)
    torch.testing.assert_close(pattern, expected)
    assert not pattern.triu(1).any()


def test_uniform_spreads_over_what_the_mask_allows_and_identity_stays():
    roles = TASK.sample(2).roles
    uniform = attention_pattern(UNIFORM, roles, 15)
    torch.testing.assert_close(uniform[0, 4], torch.tensor([0.2] * 5 + [0.0] * 10))
    everywhere = attention_pattern(UNIFORM, roles, 15, causal=False)
    torch.testing.assert_close(everywhere, torch.full((1, 15, 15), 1 / 15))
    assert torch.equal(attention_pattern(IDENTITY, roles, 15)[0], torch.eye(15))


def test_one_hot_rows_are_one_hot_and_others_zero():
    batch = TASK.sample(4)
    pattern = attention_pattern(Mechanism("one-hot", (RolePath(0, 2),)), batch.roles, 15)
    assert torch.equal(pattern.sum(-1), torch.tensor([[0.0] * 12 + [1.0] * 3] * 4))
    for example in range(4):
        for query, second in batch.roles[example][:, [0, 2]].tolist():
            assert pattern[example, query, second] == 1


def test_leaving_out_a_path_shares_its_attention_among_the_others():
    mechanism = Mechanism("shared", (RolePath(0, 2), RolePath(0, 4), RolePath(2, 1)))
    assert mechanism.without(RolePath(0, 4)).paths == (RolePath(0, 2), RolePath(2, 1))


def test_paths_are_read_and_written():
    assert RolePath.parse(" s0 <- s2", 5) == RolePath(0, 2)
    assert str(RolePath(0, 2)) == "s0<-s2"
    assert str(Mechanism("one-hot", (RolePath(4, 3), RolePath(0, 2)))) == "one-hot s0<-s2 s4<-s3"


@pytest.mark.parametrize("text", ["s0->s2", "s0<-", "<-s2", "s0<-s9", "", "s0<-s2<-s4", "s0 s2"])
def test_other_texts_are_no_path(text):
    with pytest.raises(InputError, match="expected a (path|role)"):
        RolePath.parse(text, 5)


def test_contradictory_mechanisms_are_refused():
    with pytest.raises(InputError, match="expected every path once, found s0<-s2 twice"):
        Mechanism("shared", (RolePath(0, 2), RolePath(0, 2)))
    with pytest.raises(InputError, match="expected one source per role in a one-hot head"):
        Mechanism("one-hot", (RolePath(0, 2), RolePath(0, 4)))
    with pytest.raises(InputError, match="expected no paths for a uniform head, found s0<-s2"):
        Mechanism("uniform", (RolePath(0, 2),))


def test_paths_against_the_mask_and_unknown_roles_are_refused():
    roles = TASK.sample(2).roles
    with pytest.raises(InputError, match=r"found s1<-s2: s2 comes later in the sequence"):
        attention_pattern(Mechanism("one-hot", (RolePath(1, 2),)), roles, 15)
    with pytest.raises(InputError, match=r"expected roles from s0 to s4, found the path s0<-s5"):
        attention_pattern(Mechanism("one-hot", (RolePath(0, 5),)), roles, 15)
    bidirectional = attention_pattern(
        Mechanism("one-hot", (RolePath(1, 2),)), roles, 15, causal=False
    )
    assert bidirectional.sum() == 6
