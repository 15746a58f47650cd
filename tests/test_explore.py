"""The explorer without Jupyter: what the server answers, what it refuses, and the command."""

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import warnings

import pytest

import retrieval_interp as ri
from retrieval_interp.circuits.discovery.search import SearchStopped
from retrieval_interp.commands.explore import main as explore
from retrieval_interp.explorer.server import ExplorerServer
from retrieval_interp.tasks import InputError
from tests.browser import needs_chromium, page_in_chromium

JSON = {"Content-Type": "application/json"}
LONG = 120_000  # ms; everything is waited for, nothing is slept for


@pytest.fixture
def server(model, task):
    bench = ri.open(model, task, examples=8, progress=lambda items, what: items)
    server = ExplorerServer(bench)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def request(server, method, path, body=None, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    connection.request(
        method, path, body, {name.replace("_", "-"): v for name, v in headers.items()}
    )
    answer = connection.getresponse()
    return answer, connection


def status(*arguments, **more):
    answer, connection = request(*arguments, **more)
    connection.close()
    return answer.status


def test_the_page_is_served_on_the_loopback_address_alone(server):
    assert server.server_address[0] == "127.0.0.1"
    answer, _ = request(server, "GET", f"/{server.token}/")
    page, policy = answer.read().decode(), answer.headers["Content-Security-Policy"]
    assert answer.status == 200 and "ri-explorer" in page and server.token not in page
    nonces = set(re.findall(r'nonce="([^"]+)"', page))
    assert len(nonces) == 1 and f"script-src 'nonce-{nonces.pop()}'" in policy
    assert "default-src 'none'" in policy and "connect-src 'self'" in policy
    with ExplorerServer(server.exploring.bench) as other:
        assert len(server.token) >= 32 and server.token != other.token


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/", {}),
        ("/wrong/", {}),
        ("/{token}x/", {}),
        ("/%C3%A9/", {}),
        ("/{token}/", {"Host": "evil.example"}),
        ("/{token}/", {"Host": "evil.example:{port}"}),
        ("/{token}/", {"Host": "127.0.0.1:1"}),
        ("/{token}/", {"Origin": "http://evil.example"}),
        ("/{token}/", {"Origin": "null"}),
        ("/{token}/", {"Origin": "https://127.0.0.1:{port}"}),
    ],
)
@pytest.mark.parametrize(("method", "name"), [("GET", ""), ("GET", "events"), ("POST", "ask")])
def test_others_are_refused(server, method, name, path, headers):
    known = {"token": server.token, "port": server.server_port}
    headers = {key: value.format(**known) for key, value in headers.items()}
    path = path.format(**known) + name
    assert status(server, method, path, json.dumps({"do": "undo"}), **JSON, **headers) == 403
    assert server.asked.empty()


def test_own_requests_are_taken(server):
    own = {"Origin": f"http://localhost:{server.server_port}"}
    own["Host"] = own["Origin"].removeprefix("http://")
    for headers in ({}, own):
        assert status(server, "POST", f"/{server.token}/ask", '{"do": 1}', **JSON, **headers) == 204
        assert server.asked.get(timeout=1) == {"do": 1}
    for body, more, expected in (
        ("[]", JSON, 400),
        ("{", JSON, 400),
        ("[" * 100_000, JSON, 400),
        ("{}", {"Content-Type": "text/plain"}, 400),  # what a foreign page could send unasked
        ("{}" + " " * 200_000, JSON, 413),
    ):
        assert status(server, "POST", f"/{server.token}/ask", body, **more) == expected
    for method, name in (("GET", "ask"), ("GET", "../etc"), ("POST", "events")):
        assert status(server, method, f"/{server.token}/{name}", "{}", **JSON) == 404
    assert server.asked.empty()


def event(answer):
    name, data, blank = (answer.readline().decode().rstrip("\n") for _ in range(3))
    assert blank == ""
    return name.removeprefix("event: "), json.loads(data.removeprefix("data: "))


def test_every_page_follows_what_any_of_them_changes(server):
    pages = [request(server, "GET", f"/{server.token}/events") for _ in range(2)]
    for answer, _ in pages:
        values = dict(event(answer) for _ in range(3))
        assert set(values) == {"model_info", "state", "shown"}
        assert values["state"]["loss"] == server.exploring.bench.intact_loss
    server.exploring.answer({"do": "suppose", "line": "L0.H0 uniform"})
    for answer, connection in pages:
        name, state = event(answer)
        assert name == "state" and state["loss"] == server.exploring.bench.loss
        assert event(answer)[0] == "shown"
        connection.close()


def test_a_taken_port_is_one_line(monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(
            InputError, match=f"^--port: expected a free port, found {port}: .*leave"
        ):
            explore(["--examples", "8", "--port", str(port), "--no-browser"])


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--port", "70000"], "--port: expected 0 to 65535, found 70000"),
        (["--ckpt", "smal"], "smal"),
        (["--examples", "1"], "--examples: expected 2 to 1000000, found 1"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_loaded(arguments, text, capsys):
    with pytest.raises(InputError, match=text):
        explore(arguments)
    assert capsys.readouterr().out == ""


@pytest.mark.slow
def test_ctrl_c_ends_it_cleanly(tmp_path):
    command = [sys.executable, "-m", "retrieval_interp", "explore", "--no-browser"]
    command += ["--examples", "8"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
    )
    assert process.stdout.readline() == "opening small ...\n"
    line = process.stdout.readline()
    found = re.fullmatch(r"explorer of small: http://127\.0\.0\.1:(\d+)/([\w-]{32})/\n", line)
    assert found, line
    with socket.create_connection(("127.0.0.1", int(found[1])), 30):
        pass
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "") and "ended" in out
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", int(found[1])), 1)


@pytest.mark.browser
@needs_chromium
def test_a_circuit_is_clicked_together_without_jupyter(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    quiet = {"examples": 64, "progress": lambda items, what: items}
    expected, bench = ri.open("small", **quiet), ri.open("small", **quiet)
    server = ExplorerServer(bench)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()

    def answer_one():
        server.exploring.answer(server.asked.get(timeout=60))

    size = {"width": 1440, "height": 950}
    with page_in_chromium(server.address, viewport=size) as (page, left):
        page.goto(server.address)
        loss = page.locator(".ri-explorer .loss")
        loss.wait_for(timeout=LONG)
        assert "below the tolerance of 0.05" in page.locator(".ri-explorer .top").inner_text()

        def loss_becomes(value):
            page.get_by_text(f"MSE {value:.4f}").first.wait_for(timeout=LONG)

        # The drawing is in sight beside the paths, on the right.
        paths, drawing = (page.locator(name).bounding_box() for name in (".roles", ".drawing svg"))
        for box in (paths, drawing):
            assert box["y"] + box["height"] < 950 and box["x"] + box["width"] <= 1440
        assert drawing["x"] > paths["x"] + paths["width"] and drawing["width"] > 400

        page.locator("[data-head='L2.H0']").click()
        answer_one()
        cell = page.locator(".roles [data-path='L2.H0 s0<-s2']")
        cell.click()  # selects
        answer_one()
        details = page.locator(".details")
        details.get_by_text("cut live").wait_for(timeout=LONG)
        cut = expected.scorer.empty_circuit.cut(ri.parse_head_path("L2.H0 s0<-s2", 7))
        assert f"{expected.loss_with(cut):.4f}" in details.inner_text()
        assert f"{expected.loss_with('L2.H0 s0<-s2'):.4f}" in details.inner_text()
        assert bench.circuit.mechanisms == {}
        cell.click()  # adds
        answer_one()
        expected.suppose("L2.H0 s0<-s2")
        loss_becomes(expected.loss)
        # By keyboard too, and the focus stays.
        other = page.locator(".roles [data-path='L2.H0 s4<-s6']")
        other.focus()
        for _ in range(2):
            page.keyboard.press("Enter")
            answer_one()
        expected.suppose("L2.H0 s4<-s6")
        loss_becomes(expected.loss)
        assert page.evaluate("document.activeElement.dataset.path") == "L2.H0 s4<-s6"

        # An arrow, a row and a cell are one path.
        for mark in (".drawing", ".rows tr", ".roles"):
            one = "L2.H0 s0<-s2" if mark != ".rows tr" else "L2.H0 s4<-s6"
            where = page.locator(f".drawing [data-path='{one}'] text, .drawing [data-path='{one}']")
            if mark == ".drawing":
                where.first.dispatch_event("click")
            else:
                name = f"[data-path='{one}']"
                page.locator(f"{mark}{name}" if mark.endswith("tr") else f"{mark} {name}").click()
            answer_one()
            page.wait_for_function(
                "one => [...document.querySelectorAll('.selected')].length === 4 && "
                "[...document.querySelectorAll('.selected')].every(e => e.dataset.path === one)",
                arg=one,
            )
            assert bench.circuit == expected.circuit
        page.locator(".choices [data-choice='uniform']").click()
        answer_one()
        loss_becomes(expected.loss_with("L2.H0 uniform"))
        page.get_by_role("button", name="Undo").click()
        answer_one()
        loss_becomes(expected.loss)
        with page.expect_download() as download:
            page.get_by_role("button", name="JSON").click()
        text = download.value.path().read_text()
        assert ri.Circuit.from_json(text, 7) == expected.circuit
        page.screenshot(path=tmp_path / "explore.png")
        assert left == [] and page.errors == []
        server.shutdown()
        server.server_close()


@pytest.mark.browser
@needs_chromium
def test_a_search_is_bounded_and_cancelled_in_the_browser(tmp_path, monkeypatch):
    monkeypatch.setattr("retrieval_interp.explorer.state._TELLING", -1)
    bench = ri.open("small", examples=64, progress=lambda items, what: items)
    server = ExplorerServer(bench)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    answered = []

    def answer_one():
        asked = server.asked.get(timeout=60)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SearchStopped)
            server.exploring.answer(asked)
        answered.append(asked)

    try:
        with page_in_chromium(server.address, viewport={"width": 1440, "height": 950}) as (
            page,
            left,
        ):
            page.goto(server.address)
            page.locator(".ri-explorer .loss").wait_for(timeout=LONG)
            page.get_by_text("options").click()
            page.get_by_label("starts").fill("2")
            page.get_by_label("heads").fill("L0.H0 L2.H0, L4.H0")
            page.screenshot(path=tmp_path / "options.png")
            page.get_by_role("button", name="Discover").click()
            work = threading.Thread(target=answer_one)
            work.start()
            page.get_by_text("best cost").wait_for(timeout=LONG)
            page.screenshot(path=tmp_path / "searching.png")
            page.get_by_role("button", name="Cancel").click()
            page.get_by_text("unfinished: the search was cancelled").wait_for(timeout=LONG)
            work.join()
            assert answered == [
                {"do": "discover", "restarts": 2, "heads": ["L0.H0", "L2.H0", "L4.H0"],
                 "one_hot": False}
            ]  # fmt: skip
            assert page.get_by_role("button", name="Discover").is_enabled()
            assert page.get_by_role("button", name="Cancel").count() == 0  # hidden
            assert left == [] and page.errors == []
    finally:
        server.shutdown()
        server.server_close()
