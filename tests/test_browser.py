"""The report and the explorer in a real browser."""

import contextlib
import os
import re
import subprocess
import sys
from xml.etree import ElementTree

import pytest

import retrieval_interp as ri
from tests.browser import explorer_server, measure, needs_chromium, page_in_chromium
from tests.texts import SENTENCE

pytestmark = [pytest.mark.browser, needs_chromium]
LONG = 120_000  # ms; everything is waited for, nothing is slept for


@contextlib.contextmanager
def chromium(address, width=1440, own="file:", **context):
    """A page that asks nobody else for anything and fits its width."""
    size = {"width": width, "height": 950}
    with page_in_chromium(own, viewport=size, **context) as (page, left):
        page.goto(address)
        yield page
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert left == [] and page.errors == []


@contextlib.contextmanager
def served(bench):
    """The explorer's page, and a function that answers the next message and measures."""

    def answer():
        server.asked.get(timeout=60)()
        measure(server)

    with (
        explorer_server(bench) as server,
        chromium(server.address, own=server.address) as page,
    ):
        page.locator(".ri-explorer .loss").wait_for(timeout=LONG)
        yield page, answer


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    bench = ri.open("small", examples=64)
    bench.suppose("L0.H0 shared s4<-s3 s4<-s4 s6<-s5", "L2.H0 s0<-s2 s4<-s6", "L4.H0 s0<-s4")
    bench.suppose("L1.H0 identity", "L3.H0 identity")
    assert bench.report(path).stat().st_size < 6_000_000
    return path, bench


@pytest.fixture(scope="module")
def why_page(tmp_path_factory, llama):
    found = ri.why(llama, SENTENCE, " drink", controls=0, upto="rows")
    path = tmp_path_factory.mktemp("why") / "why.html"
    return found, ri.why_view(found, llama).save_html(path)


# Reports


@pytest.mark.parametrize("width", [1440, 390])
def test_the_report_and_the_page_of_why_ask_nobody(report, why_page, width):
    found, why = why_page
    with chromium(report[0].as_uri(), width) as page:
        page.locator(".views canvas").first.wait_for(timeout=LONG)
    with chromium(why.as_uri(), width, color_scheme="dark") as page:
        units = page.locator(".units:not([hidden])")
        assert 0 < units.locator(".lane").count() <= 8
        assert units.locator(".answer").inner_text().startswith(found.question.answer.strip())
        assert page.locator(".strip .asked").inner_text() == found.question.place.text.strip()
        if (more := units.get_by_role("button")).count():
            more.click()
            assert page.locator(".units:not([hidden]) .lane").count() == len(found.units)


def test_the_report_shows_other_examples_and_a_path_in_all_its_places(report):
    with chromium(report[0].as_uri()) as page:
        page.locator(".views canvas").first.wait_for(timeout=LONG)
        picture = "document.querySelectorAll('.views canvas')[5].toDataURL()"
        page.wait_for_timeout(1500)  # circuitsvis draws with an animation
        before = page.evaluate(picture)
        page.locator(".views select").select_option("3")
        page.wait_for_function(f"old => {picture} !== old", arg=before)

        def selected_is(name):
            marked = [part.get_attribute("data-path") for part in page.locator(".selected").all()]
            assert marked == [name] * 3

        page.locator("tr[data-path='L2.H0 s4<-s6']").click()
        selected_is("L2.H0 s4<-s6")
        page.locator(".maps td[data-path='L4.H0 s0<-s4']").click()
        selected_is("L4.H0 s0<-s4")
        page.locator(".arrow[data-path='L2.H0 s0<-s2']").focus()
        page.keyboard.press("Enter")
        selected_is("L2.H0 s0<-s2")
        with page.expect_download() as download:
            page.get_by_role("link", name="SVG").click()
        assert ElementTree.fromstring(download.value.path().read_text()).tag.endswith("svg")


# The explorer


def test_a_click_on_a_token_asks_about_it(llama):
    with served(ri.open(llama, SENTENCE, answer=" store")) as (page, answer):
        asked = page.locator(".strip .asked")
        page.locator(".strip [data-place=' store']").click()
        answer()
        page.locator(".strip .asked[data-place=' store']").wait_for(timeout=LONG)
        assert asked.count() == 1
        assert "takes away is recovered" in page.locator(".said").inner_text()


def test_a_circuit_is_clicked_together_without_jupyter():
    bench, both = ri.open("small", examples=64), "L2.H0 s0<-s2 s4<-s6"
    with served(bench) as (page, answer):

        def becomes(*lines):
            """The workbench has this circuit, and the page its loss."""
            assert bench.circuit.mechanisms == ri.parse_circuit(lines, bench.task).mechanisms
            page.get_by_text(f"MSE {bench.loss:.4f}").first.wait_for(timeout=LONG)

        page.locator("[data-head='L2.H0']").click()
        answer()
        cell = page.locator(".edit [data-path='L2.H0 s0<-s2']")
        cell.click()  # selects
        answer()
        page.locator(".details").get_by_text("cut live").wait_for(timeout=LONG)
        becomes()
        cell.click()  # adds
        answer()
        becomes("L2.H0 s0<-s2")
        # By keyboard too, and the focus stays.
        page.locator(".edit [data-path='L2.H0 s4<-s6']").focus()
        for _ in range(2):
            page.keyboard.press("Enter")
            answer()
            page.locator(".details[data-selected='L2.H0 s4<-s6']").wait_for(timeout=LONG)
        becomes(both)
        assert page.evaluate("document.activeElement.dataset.path") == "L2.H0 s4<-s6"
        # An arrow, a row, a cell and positions of the example are one path.
        page.locator(".drawing .arrow[data-path='L2.H0 s0<-s2']").dispatch_event("click")
        answer()
        page.wait_for_function(
            "() => { const all = [...document.querySelectorAll('.selected')]; "
            "return all.length > 3 && all.every(one => one.dataset.path === 'L2.H0 s0<-s2'); }"
        )
        page.locator(".choices [data-line='L2.H0 uniform']").click()
        answer()
        becomes("L2.H0 uniform")
        # By keys: what was taken back comes again, and another head is looked at.
        back, again = ("Control+z", both), ("Control+Shift+Z", "L2.H0 uniform")
        for keys, line in (back, again, back):
            page.keyboard.press(keys)
            answer()
            becomes(line)
        page.locator("[data-head='L2.H0']").focus()
        for key, head in (("ArrowRight", "L3.H0"), ("ArrowUp", "L2.H0")):
            page.keyboard.press(key)
            answer()
            page.get_by_text(f"Paths of {head}").wait_for(timeout=LONG)
            assert page.evaluate("document.activeElement.dataset.head") == head
        with page.expect_download() as download:
            page.get_by_role("link", name="JSON").click()
        assert ri.Circuit.from_json(download.value.path().read_text(), 7) == bench.circuit


@contextlib.contextmanager
def jupyter_lab(folder):
    """A JupyterLab that has nothing of the user's and asks nobody for news; its address."""
    options = "--no-browser --allow-root --LabApp.extension_manager=readonly"
    options += " --LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate"
    command = [sys.executable, "-m", "jupyterlab", *options.split()]
    home = {**os.environ, "HOME": str(folder)}
    server = subprocess.Popen(command, cwd=folder, env=home, stderr=subprocess.PIPE, text=True)
    try:
        lines = (re.search(r"http://127\S+/lab\?token=\w+", line) for line in server.stderr)
        yield next(line[0] for line in lines if line)
    finally:
        server.terminate()
        server.communicate(timeout=60)


@pytest.mark.slow
def test_a_circuit_is_clicked_together_in_jupyterlab(tmp_path):
    """The widget is loaded, Python answers it, and its keys arrive."""
    import nbformat  # which takes seconds

    lines = "import retrieval_interp as ri; bench = ri.open('small', examples=64); bench.explore()"
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(lines)],
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}},
    )
    nbformat.write(notebook, tmp_path / "explore.ipynb")
    expected = ri.open("small", examples=64)
    with (
        jupyter_lab(tmp_path) as address,
        page_in_chromium(address.partition("lab?")[0]) as (page, left),
    ):
        # On a slow machine JupyterLab asks for a kernel, and drops keys until it has one.
        page.add_locator_handler(
            page.locator(".jp-Dialog"), lambda dialog: dialog.locator(".jp-mod-accept").click()
        )
        page.goto(address.replace("lab?", "lab/tree/explore.ipynb?"))
        prompt, code = (
            page.locator(f".jp-CodeCell .jp-InputArea-{of}") for of in ("prompt", "editor")
        )
        for _ in range(60):
            code.click(timeout=LONG)
            page.keyboard.press("Control+Enter")
            page.wait_for_timeout(1000)
            if prompt.inner_text().strip() != "[ ]:":
                break
        explorer = page.locator(".ri-explorer")

        def loss_becomes(value):
            explorer.locator(".loss", has_text=f"MSE {value:.4f}").wait_for(timeout=LONG)

        loss_becomes(expected.loss)
        explorer.locator("[data-head='L2.H0']").click()
        path = explorer.locator(".edit [data-path='L2.H0 s0<-s2']")
        path.press("Enter", timeout=LONG)  # selects
        explorer.locator(".details[data-selected='L2.H0 s0<-s2']").wait_for(timeout=LONG)
        path.press("Enter")  # adds
        loss_becomes(expected.suppose("L2.H0 s0<-s2").data)
        path.press("Control+z")
        loss_becomes(expected.undo().data)
        assert left == [] and page.errors == []
