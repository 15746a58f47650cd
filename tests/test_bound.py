import json
import re
import subprocess
import sys
import warnings

import plotly.io as pio
import pytest

from retrieval_interp.circuits.flow import simulate
from retrieval_interp.commands import bound
from retrieval_interp.commands.command import run_command
from retrieval_interp.tasks import InputError
from retrieval_interp.views.flow import bound_row, bound_table, flow_figure, flow_text, held_text


@pytest.fixture
def run(monkeypatch, capsys):
    """The command in this process: its status, output and errors."""

    def run(*argv):
        monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # put back afterwards
        monkeypatch.setattr(sys, "argv", ["bound", *map(str, argv)])
        status = 0
        try:
            run_command(bound.main, "retrieval-interp bound")
        except SystemExit as stop:
            status = stop.code
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def test_the_json_holds_a_row_for_every_length(run, tmp_path):
    path = tmp_path / "bound.json"
    status, out, err = run("--steps", 1, 3, 4, "--json", path)
    assert (status, err) == (0, "")
    keys = ("steps", "paper", "unmasked", "causal", "simulated_unmasked", "simulated_causal")
    assert json.loads(path.read_text()) == [
        dict(zip(keys, row)) for row in [(1, 1, 2, 2, 2, 2), (3, 2, 3, 3, 3, 3), (4, 2, 3, 4, 3, 4)]
    ]
    assert out.splitlines()[-3].split() == ["4", "2", "3", "4", "3", "4"]
    assert out.splitlines()[-1] == f"numbers: {path}"


def test_the_table_is_aligned():
    lines = bound_table([bound_row(steps) for steps in (1, 128)]).splitlines()[2:]
    assert len({len(line) for line in lines}) == 1


def test_without_options_a_selection_of_lengths_is_shown(run):
    status, out, _ = run()
    assert status == 0
    assert [int(line.split()[0]) for line in out.splitlines()[4:]] == list(bound.DEFAULT_STEPS)


def test_the_drawing_shows_shared_pieces_and_what_each_role_holds(run):
    status, out, _ = run("--draw", 2)
    assert status == 0
    assert out.split("encodings of pairs below\n\n")[1] == (
        "╭──A──╮     ╭──B──╮\n"
        "s0    s1    s2    s3    s4\n"
        "A?    A     B     B     C\n"
        "      ╰─p1──╯     ╰─p2──╯\n"
        "\n"
        "What each position can hold, with the causal mask\n"
        "\n"
        "role  in letters  at the start  after layer 1  after layer 2  after layer 3\n"
        "----  ----------  ------------  -------------  -------------  -------------\n"
        "s0    query A     p0 A          p0..p1         p0..p2         p0..C\n"
        "s1    A of A->B   A p1          A p1           A p1           A p1\n"
        "s2    B of A->B   p1 B          A..p2          A..C           A..C\n"
        "s3    B of B->C   B p2          B p2           B p2           B p2\n"
        "s4    C of B->C   p2 C          B..C           B..C           B..C\n"
        "\n"
        "The query can hold C after 3 layers, no earlier.\n"
    )


def test_without_the_mask_the_same_chain_takes_a_layer_less():
    assert "The query can hold C after 2 layers" in flow_text(2, causal=False)


def test_pieces_that_do_not_stand_together_are_listed_apart():
    assert held_text(0) == ""
    assert held_text(0b1110011) == "p0 A, p2..p3"


def test_the_figure_shows_the_layer_after_which_each_piece_arrives():
    before = pio.templates.default
    figure = flow_figure(3, causal=True)
    assert pio.templates.default == before
    states = simulate(3, 3, causal=True)
    heat = next(trace for trace in figure.data if trace.type == "heatmap")
    for role in range(7):
        for bit in range(8):
            arrived = heat.z[bit][role]
            held = [layer for layer in range(4) if states[layer][role] >> bit & 1]
            assert held == ([] if arrived is None else list(range(arrived, 4)))
    titles = {axis.title.text for axis in [*figure.select_xaxes(), *figure.select_yaxes()]} - {None}
    assert titles == {
        "position of the chain, in order of reachability from the query",
        "piece of information",
        "shared",
    }
    assert [note.text for note in figure.layout.annotations] == ["A", "p1", "B", "p2", "C", "p3"]


def test_the_page_needs_no_network(run, tmp_path):
    page = tmp_path / "flow.html"
    status, out, err = run("--draw", 3, "--no-mask", "--html", page)
    assert (status, err) == (0, "")
    assert out.splitlines()[-1] == f"drawing: {page}"
    text = page.read_text(encoding="utf-8")
    assert "without a mask" in text
    assert re.findall(r"<(?:script|link|img)[^>]*\s(?:src|href)=", text) == []


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--steps", 0], "--steps: expected numbers from 1 to 512, found 0"),
        (["--steps", 3, 513], "--steps: expected numbers from 1 to 512, found 513"),
        (["--draw", 27], "--draw: expected a number from 1 to 25, found 27"),
        (["--html", "a.html"], "--html: expected a drawing to apply to, found none; add --draw 5"),
        (["--no-mask"], "--no-mask: expected a drawing to apply to, found none; add --draw 5"),
        (["--json", "missing/a.json"], "missing/a.json: expected an existing folder to write into"),
        (["--draw", 2, "--html", "a", "--json", "a"], "expected a different file for --json and"),
        (["--steps", "two"], "--steps"),
        (["--bogus"], "--bogus"),
    ],
)
def test_bad_input_is_one_line_and_status_2(run, tmp_path, monkeypatch, argv, message):
    monkeypatch.chdir(tmp_path)
    status, out, err = run(*argv)
    assert (status, out) == (2, "")
    assert err.startswith("bound: ") and message in err and err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_the_module_runs_as_a_command():
    done = subprocess.run(
        [sys.executable, "-m", "retrieval_interp", "bound", "--steps", "0"],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "bound: --steps: expected numbers from 1 to 512, found 0\n"


def test_lengths_below_one_are_refused():
    for function in (bound_row, lambda d: flow_text(d, True), lambda d: flow_figure(d, True)):
        with pytest.raises(InputError, match="steps: expected an integer of at least 1, found 0"):
            function(0)
