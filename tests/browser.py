"""Chromium, driven by Playwright, and what it opens: the explorer's server, a JupyterLab.

Chromium is the system's (Debian: `apt-get install chromium`, or `make test BROWSER=install`).
"""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

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


@contextlib.contextmanager
def jupyter_lab(folder: Path):
    """A JupyterLab of this environment on a free port, with nothing of the user's; its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    own = folder / "jupyter"
    settings = own / "config/lab/user-settings/@jupyterlab/apputils-extension"
    settings.mkdir(parents=True)
    (settings / "notification.jupyterlab-settings").write_text('{"fetchNews": "false"}')
    names = {"JUPYTER_CONFIG_DIR": "config", "JUPYTER_DATA_DIR": "data"}
    names |= {"JUPYTER_RUNTIME_DIR": "runtime", "IPYTHONDIR": "ipython"}
    environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE", "JUPYTER_PREFER_ENV_PATH": "1"}
    environment |= {name: str(own / part) for name, part in names.items()}
    command = [sys.executable, "-m", "jupyterlab", "--allow-root", "--no-browser"]
    command += ["--ip=127.0.0.1", f"--port={port}", "--ServerApp.port_retries=0"]
    command += ["--IdentityProvider.token=", f"--ServerApp.root_dir={folder}"]
    command += ["--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate"]
    command += ["--LabApp.news_url=None", "--LabApp.extension_manager=readonly"]
    log = (folder / "lab.log").open("w")
    server = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
    try:
        for _ in range(240):
            assert server.poll() is None, (folder / "lab.log").read_text()
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.25)
        yield f"http://127.0.0.1:{port}/"
    finally:
        server.terminate()
        server.wait(60)
        log.close()


def open_notebook(page, address, name):
    """Open a notebook in JupyterLab and wait for its kernel."""
    # On a slow machine JupyterLab asks which kernel it shall take; its own choice is the right one.
    page.add_locator_handler(
        page.locator(".jp-Dialog"), lambda dialog: dialog.locator(".jp-mod-accept").click()
    )
    page.goto(f"{address}lab/tree/{name}")
    page.locator(".jp-Notebook-ExecutionIndicator[data-status=idle]").wait_for(timeout=120_000)


def run_cell(page, number):
    """Run a cell; JupyterLab drops keys while it is still starting."""
    cell = page.locator(".jp-CodeCell").nth(number)
    prompt = cell.locator(".jp-InputArea-prompt").first
    for _ in range(60):
        cell.locator(".jp-InputArea-editor").click()
        page.keyboard.press("Control+Enter")
        page.wait_for_timeout(1000)
        if prompt.inner_text().strip() != "[ ]:":
            return
    raise AssertionError(f"cell {number} does not run")
