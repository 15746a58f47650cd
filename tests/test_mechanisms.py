import pytest
import torch

from retrieval_interp.circuits.circuit import RolePath
from retrieval_interp.circuits.mechanisms import IDENTITY, UNIFORM, OneHot, Where
from retrieval_interp.tasks import InputError, RetrievalTask

TASK = RetrievalTask(chains=3, steps=2, dim=2)
# Sequence order of the roles when D = 2: a source may not come after its destination.
ORDER = {3: 0, 4: 1, 1: 2, 2: 3, 0: 4}
PATHS = [(dest, src) for dest in range(5) for src in range(5) if ORDER[src] <= ORDER[dest]]


def test_uniform_spreads_over_what_the_mask_allows_and_identity_stays():
    roles = TASK.sample(2).roles
    uniform = UNIFORM.pattern(Where(roles, 15))
    torch.testing.assert_close(uniform[0, 4], torch.tensor([0.2] * 5 + [0.0] * 10))
    everywhere = UNIFORM.pattern(Where(roles, 15, causal=False))
    torch.testing.assert_close(everywhere, torch.full((1, 15, 15), 1 / 15))
    assert torch.equal(IDENTITY.pattern(Where(roles, 15))[0], torch.eye(15))


@pytest.mark.parametrize("text", ["s0->s2", "s0<-", "<-s2", "s0<-s9", "", "s0<-s2<-s4", "s0 s2"])
def test_other_texts_are_no_path(text):
    with pytest.raises(InputError, match="expected a (path|role)"):
        RolePath.parse(text, 5)


def test_paths_against_the_mask_and_unknown_roles_are_refused():
    roles = TASK.sample(2).roles
    with pytest.raises(InputError, match=r"found s1<-s2: s2 comes later in the sequence"):
        OneHot((RolePath(1, 2),)).pattern(Where(roles, 15))
    with pytest.raises(InputError, match=r"expected roles from s0 to s4, found the path s0<-s5"):
        OneHot((RolePath(0, 5),)).pattern(Where(roles, 15))
    bidirectional = OneHot((RolePath(1, 2),)).pattern(Where(roles, 15, causal=False))
    assert bidirectional.sum() == 6
