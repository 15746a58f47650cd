"""The explorer in a browser without Jupyter: a server for one page, on this machine alone.

Every request needs the random token of the page's address, the server's own name as Host and, where
a browser names one, its own Origin: no other user of the machine and no other page can ask
anything. The page comes as server-sent events. `serve` answers its messages where it was called.
"""

import asyncio
import json
import queue
import secrets
import sys
import threading
import webbrowser
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from retrieval_interp import Workbench
from retrieval_interp.explorer.state import Exploring
from retrieval_interp.tasks import InputError
from retrieval_interp.views.page import render

HOST = "127.0.0.1"
_POLICY = (
    "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'unsafe-inline'; img-src data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def open_explorer(bench: Workbench) -> Any:
    """Return the explorer as a widget in a notebook (needs anywidget); else serve it as a page."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return serve_explorer(bench)
    try:
        from retrieval_interp.explorer.widget import Explorer
    except ModuleNotFoundError as error:
        raise InputError(
            f"the explorer needs {error.name}, which is not installed: pip install "
            "'retrieval-interp[notebook]'; or run retrieval-interp explore"
        ) from None
    return Explorer(bench)


def serve_explorer(bench: Workbench, port: int = 0, browser: bool = True) -> None:
    """Serve a workbench's explorer until Ctrl-C; `browser` opens it, the address is printed."""
    server = ExplorerServer(bench, port)
    try:
        print(f"explorer of {bench.name}: {server.address}\nCtrl-C ends it", flush=True)
        if browser:
            webbrowser.open(server.address)
        server.serve()
    except KeyboardInterrupt:
        print("\nended", flush=True)


class ExplorerServer(ThreadingHTTPServer):
    """Serves one workbench's explorer at `address`; what there is to do waits for `serve`."""

    daemon_threads = True
    closed = False

    def __init__(self, bench: Workbench, port: int = 0):
        self.changed = threading.Condition()
        try:
            super().__init__((HOST, port), _Handler)
        except (OSError, OverflowError) as error:
            text = f"--port: expected a free port, found {port}: {error}; leave it out for any one"
            raise InputError(text) from None
        self.token = secrets.token_urlsafe(24)
        self.own_names = {f"{name}:{self.server_port}" for name in (HOST, "localhost")}
        self.address = f"http://{HOST}:{self.server_port}/{self.token}/"
        self.asked: queue.SimpleQueue[Callable[[], Any]] = queue.SimpleQueue()
        self.exploring = Exploring(bench, self._publish, self.asked.put)

    def serve(self) -> None:
        """Answer requests until interrupted; then nothing listens any more."""
        threading.Thread(target=self.serve_forever, args=(0.1,), daemon=True).start()
        try:
            while True:
                self.asked.get()()
        finally:
            self.exploring.cancelled = True
            self.shutdown()
            self.server_close()

    def server_close(self) -> None:
        """Listen no more, and end the streams of events, so that pages say so."""
        super().server_close()
        self.closed = True
        self._publish("")

    def _publish(self, html: str) -> None:
        with self.changed:
            self.changed.notify_all()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print an error with its traceback; a browser that goes away is none."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: ExplorerServer

    def do_GET(self) -> None:
        answers = {("GET", ""): self._send_page, ("GET", "events"): self._send_events}
        answers["POST", "ask"] = self._take_message
        token, _, name = self.path.removeprefix("/").partition("/")
        host, origin = self.headers.get("Host", ""), self.headers.get("Origin")
        known = secrets.compare_digest(token.encode(), self.server.token.encode())
        from_page = host in self.server.own_names and origin in (None, f"http://{host}")
        if not (known and from_page and (self.command, name) in answers):
            return self.send_error(403)
        try:
            answers[self.command, name]()
        except ConnectionError:
            raise
        except Exception as error:
            self.server.handle_error(self.request, self.client_address)  # printed before the answer
            with suppress(ConnectionError):
                self.send_error(500, explain=f"{type(error).__name__}: {error}")

    do_POST = do_GET

    def _begin(self, status: int, kind: str = "plain", policy: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Type", f"text/{kind}; charset=utf-8")
        self.send_header("Content-Security-Policy", policy)
        self.send_header("Cache-Control", "no-store")
        self.send_header("Referrer-Policy", "no-referrer")
        self.end_headers()

    def _take_message(self) -> None:
        message = dict(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        if "do" not in message:
            raise ValueError("expected what to do")
        self.server.asked.put(partial(self.server.exploring.answer, message))
        self._begin(204)

    def _send_page(self) -> None:
        nonce = secrets.token_urlsafe(16)
        title = f"Explorer of {self.server.exploring.bench.name}"
        page = render("explore.html", title=title, nonce=nonce)
        self._begin(200, "html", _POLICY.format(nonce=nonce))
        self.wfile.write(str(page).encode())

    def _send_events(self) -> None:
        """Send the page as it is, and then after every change."""
        self._begin(200, "event-stream")
        server = self.server
        while not server.closed:  # or until the page is, which is an OSError
            shown = server.exploring.html
            self.wfile.write(f"event: page\ndata: {json.dumps(shown)}\n\n".encode())
            with server.changed:
                while server.exploring.html is shown and not server.closed:
                    server.changed.wait()

    def log_message(self, format: str, *args: Any) -> None:
        """Write no requests to the terminal: their addresses hold the token."""
