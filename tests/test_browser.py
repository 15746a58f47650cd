"""The report and the explorer in a real browser.

`pytest -m browser --basetemp=DIR` leaves screenshots in DIR.
"""

import csv
import io
import itertools
import re
from xml.etree import ElementTree

import nbformat
import pytest

import retrieval_interp as ri
from retrieval_interp.config.model_config import ModelConfig
from retrieval_interp.training.model import build_model
from tests.browser import jupyter_lab, needs_chromium, open_notebook, page_in_chromium, run_cell

pytestmark = [pytest.mark.browser, needs_chromium]
LONG = 120_000  # ms; everything is waited for, nothing is slept for


RECORD_FRAMES = """
globalThis.framed = [];
const stroke = CanvasRenderingContext2D.prototype.strokeRect;
CanvasRenderingContext2D.prototype.strokeRect = function (x, y, width, height) {
  if (width < 30) framed.push([this.strokeStyle, (y - 35) / (height + 2), (x - 35) / (width + 2)]);
  stroke.call(this, x, y, width, height);
};"""
IN_CIRCUIT, SELECTED = "#e0862b", "#c2305f"


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    bench = ri.open("small", examples=64, progress=lambda items, what: items)
    bench.suppose("L0.H0 shared s4<-s3 s4<-s4 s6<-s5", "L2.H0 s0<-s2 s4<-s6", "L4.H0 s0<-s4")
    bench.suppose("L1.H0 identity", "L3.H0 identity")
    assert bench.report(path).stat().st_size < 6_000_000
    return path, bench


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_sweep_fits_a_phone_and_follows_the_theme(model, task, tmp_path, scheme):
    bench = ri.open(model, task, examples=4, progress=lambda items, what: items)
    path = bench.sweep(least=0.05).save_html(tmp_path / "sweep.html")
    with page_in_chromium(viewport={"width": 390, "height": 900}, color_scheme=scheme) as (
        page,
        left,
    ):
        page.goto(path.as_uri())
        page.locator(".plotly-graph-div .main-svg").first.wait_for(timeout=LONG)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        page.wait_for_function(
            "document.querySelector('.plotly-graph-div')._fullLayout.font.color === "
            "getComputedStyle(document.body).color"
        )
        assert left == [] and page.errors == []


class ManyQuestions(ri.RepeatedTokensTask):
    """Chains whose labels are long: as wide as the page allows, and no wider."""

    role_names = ("question", "earlier_token", "answer_token")
    position_labels = ri.Task.position_labels


@pytest.mark.parametrize("width", [1440, 950, 390])
def test_many_chains_with_long_labels_leave_room_for_the_circuit(tmp_path, width):
    own = ManyQuestions(length=12, alphabet=26)
    bench = ri.open(
        build_model(ModelConfig(layers=2, heads=2, d_model=8), own),
        own,
        examples=4,
        progress=lambda items, what: items,
    )
    bench.suppose("L1.H0 question<-answer_token")
    path = bench.report(tmp_path / "report.html")
    with page_in_chromium(viewport={"width": width, "height": 950}) as (page, left):
        page.goto(path.as_uri())
        explorer = page.locator("#explorer .ri-explorer")
        explorer.wait_for(timeout=LONG)
        page.screenshot(path=tmp_path / "chains.png", full_page=True)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert explorer.locator(".circuit").bounding_box()["width"] >= min(width - 60, 400)
        names = explorer.locator(".look .row").nth(1).get_by_role("button").all_inner_texts()
        assert len(names) > 10 and not any("(" in name for name in names)
        assert left == [] and page.errors == []


@pytest.mark.parametrize("width", [1440, 950, 390])
def test_many_roles_neither_overlap_nor_widen_the_page(tmp_path, width):
    own = ri.RetrievalTask(steps=7, chains=2)
    model = build_model(ModelConfig(layers=2, heads=1, d_model=8), own)
    bench = ri.open(model, own, examples=4, progress=lambda items, what: items)
    bench.suppose("L1.H0 s0<-s2")
    path = bench.report(tmp_path / "report.html")
    with page_in_chromium(viewport={"width": width, "height": 950}) as (page, left):
        page.goto(path.as_uri())
        page.locator("#explorer .ri-explorer").wait_for(timeout=LONG)
        page.screenshot(path=tmp_path / "roles.png", full_page=True)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        names = (".scrolled", ".details", ".look", ".circuit")
        boxes = [page.locator(f".panels {name}").bounding_box() for name in names]
        for one, other in itertools.combinations(boxes, 2):
            across = min(one["x"] + one["width"], other["x"] + other["width"]) - max(
                one["x"], other["x"]
            )
            down = min(one["y"] + one["height"], other["y"] + other["height"]) - max(
                one["y"], other["y"]
            )
            assert across <= 0.5 or down <= 0.5
        table, room = (page.locator(name).bounding_box() for name in (".roles", ".scrolled"))
        assert width == 390 or table["width"] <= room["width"]
        assert left == [] and page.errors == []


def test_paths_are_framed_where_they_put_attention(model, task, tmp_path):
    bench = ri.open(model, task, examples=4, progress=lambda items, what: items)
    lines = {name: f"L0.H0 {name}" for name in ("s4<-s3", "s2<-s1", "s0<-s2")}
    bench.suppose(*lines.values())

    def cells(name):  # of the pattern that a circuit of this path alone has
        circuit = ri.parse_circuit([f"L0.H0 one-hot {name}"], task)
        with ri.ablated(bench.model, circuit, bench.batch[:1]):
            _, cache = bench.model.run_with_cache(bench.batch.inputs[:1])
        return {tuple(cell) for cell in cache["pattern", 0][0, 0].nonzero().tolist()}

    with page_in_chromium() as (page, left):
        page.add_init_script(RECORD_FRAMES)
        page.goto(bench.report(tmp_path / "report.html").as_uri())
        look = page.locator("#explorer .look")
        look.wait_for(timeout=LONG)

        def framed(button):
            page.evaluate("framed.length = 0")
            look.get_by_role("button", name=button, exact=True).click()
            found = {IN_CIRCUIT: set(), SELECTED: set()}
            for color, dest, src in page.evaluate("framed"):
                found[color].add((dest, src))
            return found

        for chosen in lines:
            page.locator(f".rows tr[data-path='{lines[chosen]}']").click()
            found, others = framed("all"), [cells(name) for name in lines if name != chosen]
            assert found == {SELECTED: cells(chosen), IN_CIRCUIT: set.union(*others)}
        of_second = set(bench.batch.roles[0, 1].tolist())
        found = framed("A2?")
        assert found[SELECTED] == cells(chosen)
        assert found[IN_CIRCUIT] == {at for at in set.union(*others) if at[0] in of_second}
        assert len(found[IN_CIRCUIT]) == 2 and left == [] and page.errors == []


@pytest.mark.parametrize(
    ("name", "width", "scheme"),
    [("light", 1200, "light"), ("dark", 1200, "dark"), ("phone", 390, "light")],
)
def test_the_report_reads_well_everywhere(report, tmp_path, name, width, scheme):
    path, _ = report
    size = {"width": width, "height": 900}
    with page_in_chromium(viewport=size, color_scheme=scheme) as (page, left):
        page.goto(path.as_uri())
        page.locator(".views canvas").first.wait_for(timeout=LONG)
        # On a phone tables scroll inside the page, the page itself does not.
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.locator(".verdict").inner_text().startswith("Sufficient")
        # Letters of the drawing are at least 8 pixels, and no path breaks at its arrow.
        scale = "document.querySelector('.drawing svg').getScreenCTM().a"
        assert 13 * page.evaluate(scale) >= 8
        lines = "[...document.querySelectorAll('.nowrap')].map(one => one.getClientRects().length)"
        assert set(page.evaluate(lines)) == {1}
        text = "document.body.innerText.match(/\\S*(<-|->)\\S*/g).length"
        assert page.evaluate(text) > 50
        dark = (
            page.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
        )
        assert dark == (scheme == "dark")
        page.screenshot(path=tmp_path / f"report-{name}.png", full_page=True)
        assert left == [] and page.errors == []


def test_the_reports_table_sorts_and_its_examples_change(report):
    path, bench = report
    costs = {row.path: row.ablated_loss for row in bench.score().data.paths}
    with page_in_chromium() as (page, left):
        page.goto(path.as_uri())
        page.locator(".views canvas").first.wait_for(timeout=LONG)
        table = page.locator("#costs ~ div table.sortable").nth(1)
        head = table.get_by_role("button", name="MSE, ablated too")
        names = table.locator("tbody tr td:first-child")
        shown = "getComputedStyle(document.querySelector('table.sortable th button'), '::after')"
        assert "↕" in page.evaluate(f"{shown}.content")  # says that it sorts
        heads = table.locator("th")
        assert heads.nth(2).get_attribute("aria-sort") == "none"
        head.focus()
        page.keyboard.press("Enter")
        assert heads.nth(2).get_attribute("aria-sort") == "ascending"
        assert names.all_inner_texts() == [str(path) for path in sorted(costs, key=costs.get)]
        page.keyboard.press("Enter")
        assert heads.nth(2).get_attribute("aria-sort") == "descending"
        down = sorted(costs, key=costs.get, reverse=True)
        assert names.all_inner_texts() == [str(path) for path in down]

        table.locator("tbody td:first-child").nth(0).evaluate("cell => cell.textContent = 'L10.H0'")
        heads.nth(0).get_by_role("button").click()
        assert names.last.inner_text() == "L10.H0"  # after L2.H0

        def picture():
            return page.evaluate("document.querySelectorAll('.views canvas')[5].toDataURL()")

        page.wait_for_timeout(1500)  # circuitsvis draws with an animation
        before = picture()
        page.locator(".views select").select_option("3")
        page.wait_for_function(
            "old => document.querySelectorAll('.views canvas')[5].toDataURL() !== old", arg=before
        )
        assert left == [] and page.errors == []


def test_the_report_is_the_explorers_page_frozen(report):
    """An arrow, a row and a cell select one path everywhere, with its pattern and its numbers."""
    path, bench = report
    rows = {str(row.path): row for row in bench.score().data.paths}
    with page_in_chromium(viewport={"width": 1440, "height": 950}) as (page, left):
        page.goto(path.as_uri())
        explorer = page.locator("#explorer .ri-explorer")
        explorer.wait_for(timeout=LONG)
        # Nothing is cut off at the right.
        for table in page.locator("table").all():
            box = table.bounding_box()
            assert box["x"] + box["width"] <= 1440

        def selected_is(name):
            page.wait_for_function(
                "name => { const marked = [...document.querySelectorAll('.selected')]; return "
                "marked.length >= 5 && marked.every(one => one.dataset.path === name); }",
                arg=name,
            )
            details = explorer.locator(".details").inner_text()
            assert f"{rows[name].ablated_loss:.4f}" in details
            assert f"{rows[name].live_loss:.4f}" in details
            head, arrow = name.split()
            assert head in explorer.locator(".look h4").inner_text()
            dest, src = (int(role[1:]) for role in arrow.split("<-"))
            return page.evaluate(  # the pattern is the head's, on the first example
                "([dest, src]) => { const [x] = attentionShown['examples-view'].attention; "
                f"return x[{head[1]}][dest][src] / 1000; }}",
                [bench.batch.roles[0, 0, role].item() for role in (dest, src)],
            )

        page.locator("#costs ~ div tr[data-path='L2.H0 s4<-s6']").first.click()
        weight = selected_is("L2.H0 s4<-s6")
        pattern = bench.attention(2, 0).data[0, 0]
        at = [bench.batch.roles[0, 0, role].item() for role in (4, 6)]
        assert weight == pytest.approx(float(pattern[at[0], at[1]]), abs=1e-3)
        page.locator(".maps td[data-path='L4.H0 s0<-s4']").click()
        selected_is("L4.H0 s0<-s4")
        explorer.locator(".drawing [data-path='L2.H0 s0<-s2']").focus()
        page.keyboard.press("Enter")
        selected_is("L2.H0 s0<-s2")
        explorer.locator(".roles [data-path='L2.H0 s4<-s6']").click()
        selected_is("L2.H0 s4<-s6")
        assert explorer.get_by_role("button", name="Discover").count() == 0

        files = {}
        for kind in ("JSON", "CSV", "SVG"):
            with page.expect_download() as download:
                explorer.get_by_role("button", name=kind).click()
            files[kind] = download.value.path().read_text()
        assert ri.Circuit.from_json(files["JSON"], 7) == bench.circuit
        table = {row["path"]: row for row in csv.DictReader(io.StringIO(files["CSV"]))}
        for name, row in rows.items():
            assert float(table[name]["MSE ablated too"]) == row.ablated_loss
            assert float(table[name]["MSE cut live"]) == row.live_loss
        assert ElementTree.fromstring(files["SVG"]).tag.endswith("svg")
        page.get_by_role("link", name="Costs", exact=True).click()
        assert page.url.endswith("#costs")
        assert left == [] and page.errors == []


@pytest.mark.slow
def test_a_circuit_is_clicked_together_in_jupyterlab(tmp_path):
    lines = ["import retrieval_interp as ri", "bench = ri.open('small', examples=64)"]
    cells = ["\n".join([*lines, "bench.explore()"]), "bench.attention(2)", "bench.circuit"]
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(cell) for cell in cells],
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}},
    )
    (tmp_path / "work").mkdir()
    nbformat.write(notebook, tmp_path / "work" / "explore.ipynb")
    bench = ri.open("small", examples=64, progress=lambda items, what: items)
    bench.suppose("L2.H0 s0<-s2")
    size = {"width": 1400, "height": 1500}
    with (
        jupyter_lab(tmp_path / "work") as address,
        page_in_chromium(address, viewport=size) as (page, left),
    ):
        open_notebook(page, address, "explore.ipynb")
        run_cell(page, 0)
        explorer = page.locator(".ri-explorer")
        explorer.wait_for(timeout=LONG)
        loss = explorer.locator(".loss")
        assert loss.inner_text() == f"MSE {bench.intact_loss:.4f}"

        explorer.locator("[data-head='L2.H0']").click()
        explorer.get_by_text("L2.H0, intact model: rows attend to columns").wait_for(timeout=LONG)
        explorer.locator("[data-path='L2.H0 s0<-s2']").dblclick()  # selects, and adds
        explorer.get_by_text(f"MSE {bench.loss:.4f}").wait_for(timeout=LONG)
        took = re.fullmatch(r"(\d+) ms|([\d.]+) s", explorer.locator(".said").inner_text())
        assert took  # how long is for the reader; a busy machine decides it
        explorer.locator("[data-choice='uniform']").click()
        bench.suppose("L2.H0 uniform")
        explorer.get_by_text(f"MSE {bench.loss:.4f}").first.wait_for(timeout=LONG)
        explorer.get_by_role("button", name="Undo").click()
        bench.undo()
        page.wait_for_function(
            "text => document.querySelector('.ri-explorer .loss').innerText === text",
            arg=f"MSE {bench.loss:.4f}",
        )
        # The same by a click on the example: the query's row, the column it attends to.
        where = bench.batch.roles[0, 0].tolist()
        canvas = explorer.locator("canvas.example")
        box = canvas.bounding_box()
        natural = float(canvas.evaluate("canvas => parseFloat(canvas.style.width)"))
        cell, scale = (natural - 36) / bench.batch.inputs.shape[1], box["width"] / natural
        x, y = (scale * (34 + (where[role] + 0.5) * cell) for role in (6, 4))
        at = {"x": x, "y": y}
        canvas.dblclick(position=at)
        bench.suppose("L2.H0 s4<-s6")
        page.wait_for_function(
            "text => document.querySelector('.ri-explorer .loss').innerText === text",
            arg=f"MSE {bench.loss:.4f}",
        )
        page.screenshot(path=tmp_path / "explorer.png")
        explorer.get_by_role("button", name="Save").click()
        explorer.get_by_text("saved to circuit.json").wait_for(timeout=LONG)
        saved = (tmp_path / "work" / "circuit.json").read_text()
        assert ri.Circuit.from_json(saved, 7) == bench.circuit

        # What was clicked is there in Python, and circuitsvis draws.
        run_cell(page, 1)
        run_cell(page, 2)
        page.locator(".jp-OutputArea .views canvas").first.wait_for(timeout=LONG)
        page.locator(".jp-CodeCell").nth(2).locator(".jp-OutputArea svg").first.wait_for(
            timeout=LONG
        )
        page.screenshot(path=tmp_path / "notebook.png", full_page=True)
        assert left == [] and page.errors == []
