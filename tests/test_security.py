"""Nothing that is read runs, nothing that is shown becomes markup, nothing asks the network."""

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

import retrieval_interp as ri
from retrieval_interp.explorer.state import Exploring
from retrieval_interp.llm.results import AccuracyRow, accuracy_figure
from retrieval_interp.views.page import circuit_html
from tests.tiny_run import SIZES, TASK, save_run

ROOT = Path(__file__).parent.parent
HOSTILE = (
    "</script></style></title><script>alert(1)</script><img src=x onerror=alert(2)>"
    "\"'--><!--&\u2028"
)
MILD = re.sub("[^ ]", "a", HOSTILE)  # which breaks into as many lines


def named_task(text):
    """A task that says the text wherever a task may say something."""

    class Named(ri.RetrievalTask):
        loss_name = text
        role_labels = property(lambda self: tuple(f"{text}{i}" for i in range(3)))
        role_symbols = role_labels
        description = property(lambda self: text)
        asked = property(lambda self: (text,))

        def path_label(self, dest, src):
            return f"{text} {dest} {src}"

        def position_labels(self, batch, example):
            return [text] * batch.inputs.shape[1]

        def to_dict(self):
            return {"name": text, text: text}

    return Named(chains=2, steps=1, dim=2)


def pages(text, folder):
    task = named_task(text)
    model, training = ri.build_model(SIZES, TASK).eval(), {"recipe": {text: [text]}, text: text}
    bench = ri.open(ri.Checkpoint(text, model, task, SIZES, training), examples=8)
    bench.suppose("L1.H0 one-hot s0<-s2")
    for name in ("score", "roles", "attention"):
        yield name, getattr(bench, name)().save_html(folder / "view.html").read_text()
    yield "report", bench.report(folder / "report.html").read_text()
    yield "bench", bench._repr_html_()
    yield "explorer", Exploring(bench, lambda html: None, lambda act: act()).html
    yield "drawing", ri.draw_circuit(bench.circuit, 2, [1, 2, 0], task=task)
    yield "circuit", circuit_html(bench.circuit)
    figure = accuracy_figure([AccuracyRow(text, "equations", 1, 8, 0.5, 0.1, 0.25)])
    yield "figure", figure.to_html(include_plotlyjs=False, div_id="figure")


class Elements(HTMLParser):
    """The elements of a page, with the names of their attributes."""

    def __init__(self, page):
        super().__init__()
        self.elements = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, *(name for name, _ in attrs)))


def test_names_do_not_become_markup(tmp_path):
    hostile_pages = dict(pages(HOSTILE, tmp_path))
    for name, mild in pages(MILD, tmp_path):
        hostile = hostile_pages[name]
        assert Elements(hostile).elements == Elements(mild).elements, name
        if name != "circuit":  # which names no task
            assert "&lt;img" in hostile or "\\u003cimg" in hostile, name
        if name == "figure":  # whose scripts Plotly reads as markup
            assert "\\u003cimg" not in hostile
        markup = re.sub(r"<script\b.*?</script>", "", hostile, flags=re.S)
        asks = r"""@import|url\((?!#)|\b(?:src|href|data|action)=["'](?!#|data:)"""
        assert not re.search(asks, markup), name


GUARDED = """
import json, runpy, sys

asked = []

def refuse(event, args):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"):
        asked.append(f"{event} {args!r:.100}")
        raise OSError("no network here")

sys.addaudithook(refuse)
for sys.argv in json.loads(sys.argv[1]):
    try:
        runpy.run_module(sys.argv[0], run_name="__main__")
    except SystemExit as stop:
        assert not stop.code, (sys.argv, stop.code)
print(len(asked), *asked)
"""


@pytest.mark.slow
def test_no_command_asks_the_network(tmp_path):
    save_run(tmp_path / "run", 20)
    circuit = ri.parse_circuit(["L1.H0 one-hot s0<-s2"], TASK)
    (tmp_path / "circuit.json").write_text(circuit.to_json())
    row = {"model": "a", "formulation": "equations", "steps": 1, "questions": 8}
    row |= {"accuracy": 0.5, "stderr": 0.1, "chance": 0.25}
    (tmp_path / "rows.json").write_text(json.dumps({"rows": [row]}))
    lines = [
        "ablate --ckpt run --circuit circuit.json --examples 8 --report a.html",
        "bound --steps 1",
        "emergence --run run --circuit circuit.json --examples 8",
        "reproduce --only C3",
        "train --out new --steps 2 --batch 2 --examples 4 --validation-examples 2 --no-compile",
        "llm plot rows.json --out l.html",
    ]
    asked = json.dumps([["retrieval_interp", *line.split()] for line in lines])
    command, paths = [sys.executable, "-c", GUARDED, asked], {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, env={**os.environ, **paths}
    )
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "0"), done.stderr
    assert {path.name for path in tmp_path.glob("*.html")} == {"a.html", "l.html"}
    assert (tmp_path / "new/checkpoints/step-000002.safetensors").exists()
