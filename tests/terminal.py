"""Commands on a terminal of 80 columns (a pty) and through a pipe, in this process.

Loading the libraries again for each command would take seconds.
"""

import contextlib
import re
import struct
import sys
import threading
from io import StringIO

import pytest

from retrieval_interp import __main__ as cli

pty = pytest.importorskip("pty")
COLUMNS = 80


def set_size(terminal, columns):
    import fcntl
    import termios

    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))


@contextlib.contextmanager
def terminal(columns=COLUMNS):
    """A file that is a terminal, and a list of what was written to it, once the block has ended."""
    end, own = pty.openpty()
    set_size(own, columns)
    written, text = [], []

    def read():
        with (
            contextlib.suppress(OSError),
            open(end, "rb", buffering=0) as screen,
        ):  # at its end: EIO
            while part := screen.read(4096):
                written.append(part)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        with open(own, "w") as file:
            yield file, text
    finally:
        reader.join()
        text.append(b"".join(written).decode().replace("\r\n", "\n"))


def lines_of(text):
    """What stood on the screen, line by line; a bar writes many states of one line."""
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    return [part.rstrip() for line in plain.split("\n") for part in line.split("\r")]


def run(monkeypatch, *arguments, columns=None, prog="retrieval-interp"):
    """`retrieval-interp ARGUMENTS` in this process.

    On a terminal of so many columns, or through a pipe if None.

    Returns:
        The exit status, standard output and standard error; on a terminal both together.
    """
    monkeypatch.setattr(sys, "argv", [prog, *map(str, arguments)])
    monkeypatch.setattr("retrieval_interp.commands.command._on_signals", lambda handler: None)
    if columns is None:
        monkeypatch.delenv("COLUMNS", raising=False)
        out, errors = StringIO(), StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
            return _status(), out.getvalue(), errors.getvalue()
    monkeypatch.setenv("COLUMNS", str(columns))  # Python asks the terminal of the process otherwise
    with terminal(columns) as (file, text):
        with contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
            status = _status()
    return status, text[0], ""


def _status():
    try:
        cli.run()
    except SystemExit as stop:
        return stop.code or 0
    return 0
