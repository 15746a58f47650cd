"""Chromium, driven by Playwright, and the explorer's server.

Chromium is the system's (Debian: `apt-get install chromium`, or `make test BROWSER=install`).
"""

import contextlib
import shutil
import threading

import pytest

from retrieval_interp.explorer.server import ExplorerServer

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
# No request of the browser's own; a container's root has no sandbox.
_FLAGS = "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync "
_FLAGS += "--disable-background-networking --disable-component-update"


@contextlib.contextmanager
def page_in_chromium(own_address="file:", **context):
    """A page, and the list of addresses that it asked for outside its own."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=_FLAGS.split())
        try:
            page = browser.new_context(**context).new_page()
            left, errors = [], []
            inside = (own_address, "data:", "blob:")

            def note(request):
                if not request.url.startswith(inside):
                    left.append(request.url)

            page.on("request", note)
            page.on("pageerror", lambda error: errors.append(str(error)))
            page.errors = errors
            yield page, left
        finally:
            browser.close()


@contextlib.contextmanager
def explorer_server(bench):
    """The explorer's server, once all is measured; what it is asked waits in `server.asked`."""
    server = ExplorerServer(bench)
    measure(server)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def measure(server):
    while not server.asked.empty():
        server.asked.get()()
