"""The explorer without Jupyter: what the server answers, what it refuses, and the command."""

import http.client
import json
import re
import signal
import subprocess
import sys

import pytest

from retrieval_interp.commands.explore import main as explore
from retrieval_interp.explorer.state import Exploring
from retrieval_interp.tasks import InputError
from tests.browser import explorer_server
from tests.models import untrained_bridge
from tests.texts import SENTENCE


def waiting(server):
    """What waits to be done, taken from the queue."""
    return [server.asked.get() for _ in range(server.asked.qsize())]


@pytest.fixture
def server(bench):
    with explorer_server(bench) as server:
        yield server


def request(server, method, path, body=None, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    connection.request(method, path, body, headers)
    return connection.getresponse(), connection


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


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/", {}),
        ("/{token}x/", {}),
        ("/{token}/", {"Host": "evil.example:{port}"}),
        ("/{token}/", {"Host": "127.0.0.1:1"}),
        ("/{token}/", {"Origin": "http://evil.example"}),
        ("/{token}/", {"Origin": "https://127.0.0.1:{port}"}),
    ],
)
@pytest.mark.parametrize(("method", "name"), [("GET", ""), ("GET", "events"), ("POST", "ask")])
def test_others_are_refused(server, method, name, path, headers):
    known = {"token": server.token, "port": server.server_port}
    headers = {key: value.format(**known) for key, value in headers.items()}
    path = path.format(**known) + name
    assert status(server, method, path, json.dumps({"do": "undo"}), **headers) == 403
    assert not waiting(server)


def test_own_requests_are_taken(server):
    own = {"Origin": f"http://localhost:{server.server_port}"}
    own["Host"] = own["Origin"].removeprefix("http://")
    for headers in ({}, own):
        assert status(server, "POST", f"/{server.token}/ask", '{"do": 1}', **headers) == 204
        assert waiting(server)[0].args == ({"do": 1},)
    for method, name in (("GET", "ask"), ("GET", "../etc"), ("POST", "events")):
        assert status(server, method, f"/{server.token}/{name}", "{}") == 403
    assert not waiting(server)


def test_a_broken_request_is_answered_and_only_a_lost_browser_is_silent(
    server, monkeypatch, capsys
):
    for body in ("", "{", "[]", "{}", '["do"]'):
        assert status(server, "POST", f"/{server.token}/ask", body) == 500
    monkeypatch.setattr("retrieval_interp.explorer.server.render", None)  # cannot be called
    assert status(server, "GET", f"/{server.token}/") == 500
    for error in (BrokenPipeError, ConnectionResetError, RuntimeError):
        try:
            raise error("gone wrong")
        except error:
            server.handle_error(None, "a browser")
    assert re.findall(r"\n(\w+): gone wrong", capsys.readouterr().err) == ["RuntimeError"]


def test_every_page_follows_what_any_of_them_changes(server):
    def html(answer):
        name, data, blank = (answer.readline().decode().rstrip("\n") for _ in range(3))
        assert (name, blank) == ("event: page", "")
        return json.loads(data.removeprefix("data: "))

    pages = [request(server, "GET", f"/{server.token}/events") for _ in range(2)]
    for answer, _ in pages:
        assert f"{server.exploring.bench.intact_loss:.4f}" in html(answer)
    server.exploring.answer({"do": "suppose", "line": "L0.H0 uniform"})
    for answer, _ in pages:
        assert f"{server.exploring.bench.loss:.4f}" in html(answer)
    server.shutdown()
    server.server_close()  # pages are told
    for answer, connection in pages:
        answer.read()  # up to its end, or the time is over
        connection.close()


@pytest.mark.slow
def test_a_taken_port_is_one_line_and_ctrl_c_ends_it_cleanly(tmp_path):
    command = [sys.executable, "-m", "retrieval_interp", "explore", "--no-browser"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([*command, "--examples", "8"], cwd=tmp_path, **pipes)
    assert process.stdout.readline() == "opening small ...\n"
    line = process.stdout.readline()
    port = re.fullmatch(r"explorer of small: http://127\.0\.0\.1:(\d+)/[\w-]{32}/\n", line)[1]
    with pytest.raises(InputError, match=f"^--port: expected a free port, found {port}"):
        explore(["--examples", "8", "--port", port, "--no-browser"])
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "") and "ended" in out


def test_a_token_of_a_prompt_is_asked_about(tmp_path, monkeypatch):
    opened, served = [], "retrieval_interp.explorer.server.serve_explorer"
    monkeypatch.setattr(served, lambda bench, *how: opened.append(bench))
    untrained_bridge("llama", tmp_path)
    explore(["--model", str(tmp_path), "--prompt", SENTENCE, "--answer", " store"])
    (bench,) = opened
    places, changed = bench.question.places, bench.measured.counterfactual.inputs.tolist()
    assert len(set(map(tuple, changed))) == len(bench.batch) == len(bench.question.changes) // 2
    page = Exploring(bench, lambda html: None, lambda act: act())
    page.answer({"do": "ask", "place": " store"})
    assert bench.question.places == places and bench.question.place.text == " store"
    assert "0% of what the counterfactual takes away" in page.page["said"]
    with pytest.raises(InputError, match="expected four changes of ' Mary' .* found 3"):
        bench.ask(" Mary")
