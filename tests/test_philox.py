import torch

from retrieval_interp.tasks.sampling import normals, philox, random_words


def words(counter, key):
    state = tuple(torch.tensor(value) for value in counter)
    return [f"{int(word):08x}" for word in philox(state, key)]


def test_words_equal_the_published_known_answers():
    # Random123's known-answer table for philox4x32 with 10 rounds.
    ones = 0xFFFFFFFF
    assert words((0, 0, 0, 0), (0, 0)) == ["6627e8d5", "e169c58d", "bc57ac4c", "9b00dbd8"]
    assert words((ones,) * 4, (ones,) * 2) == ["408f276d", "41c83b0e", "a20bc7c6", "6d5451fd"]
    pi = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)
    assert words(pi, (0xA4093822, 0x299F31D0)) == ["d16cfe09", "94fdcceb", "5001e420", "24126ea1"]


def test_streams_seeds_and_examples_do_not_repeat():
    indices = torch.tensor([0, 1, 2**32, 2**32 + 1])
    rows = [random_words(indices, 8, seed, stream) for seed in (0, 1, 2**32) for stream in (0, 1)]
    assert len({tuple(row.tolist()) for block in rows for row in block}) == 24


def test_normals_have_the_moments_and_quantiles_of_a_standard_normal():
    x = normals(random_words(torch.arange(50_000), 8, 3, 0)).double()
    assert abs(x.mean()) < 0.01 and abs(x.std() - 1) < 0.01
    assert abs((x**3).mean()) < 0.02 and abs((x**4).mean() - 3) < 0.05
    assert abs((x.abs() < 1.959964).double().mean() - 0.95) < 0.002
    correlations = torch.corrcoef(x.T) - torch.eye(8)
    assert correlations.abs().max() < 0.03
