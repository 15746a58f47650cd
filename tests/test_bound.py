import json

import plotly.io as pio
import pytest

from retrieval_interp.circuits.flow import simulate
from retrieval_interp.commands import bound
from retrieval_interp.tasks import InputError
from retrieval_interp.views.flow import flow_figure, flow_text


def run(*argv):
    bound.main([str(word) for word in argv])


def test_the_json_holds_a_row_for_every_length(tmp_path, capsys):
    path = tmp_path / "bound.json"
    run("--steps", 1, 3, 4, "--json", path)
    keys = ("steps", "paper", "unmasked", "causal", "simulated_unmasked", "simulated_causal")
    assert json.loads(path.read_text()) == [
        dict(zip(keys, row)) for row in [(1, 1, 2, 2, 2, 2), (3, 2, 3, 3, 3, 3), (4, 2, 3, 4, 3, 4)]
    ]
    assert capsys.readouterr().out.splitlines()[-3].split() == ["4", "2", "3", "4", "3", "4"]


def test_the_drawing_shows_shared_pieces_and_what_each_role_holds(capsys):
    run("--draw", 2)
    drawn = capsys.readouterr().out
    assert "╭──A──╮     ╭──B──╮\ns0    s1    s2    s3    s4\nA?    A     B     B     C\n" in drawn
    rows = [line.split() for line in drawn.splitlines() if line.startswith("s0")]
    assert rows[-1] == ["s0", "query", "A", "p0", "A", "p0..p1", "p0..p2", "p0..C"]
    assert "The query can hold C after 3 layers" in drawn
    assert "The query can hold C after 2 layers" in flow_text(2, causal=False)


def test_the_figure_shows_the_layer_after_which_each_piece_arrives():
    before = pio.templates.default
    (heat,) = flow_figure(3, causal=True).data
    assert pio.templates.default == before
    states = simulate(3, 3, causal=True)
    for role in range(7):
        for piece in range(8):
            arrived = heat.z[piece][role]
            held = [layer for layer in range(4) if states[layer, role, piece]]
            assert held == ([] if arrived is None else list(range(int(arrived), 4)))


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--steps", 3, 513], "--steps: .* 1 to 512, found 513"),
        (["--draw", 27], "--draw: .* 1 to 25, found 27"),
    ],
)
def test_bad_input_is_refused(tmp_path, monkeypatch, argv, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=f"^{message}"):
        run(*argv)
    assert list(tmp_path.iterdir()) == []
