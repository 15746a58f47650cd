"""Commands as a user runs them, in this process: loading the libraries again would take seconds."""

import contextlib
import re
import sys
from io import StringIO

from retrieval_interp import __main__ as cli

COLUMNS = 80


class Screen(StringIO):
    """What is written to a terminal."""

    def isatty(self):
        return True


def lines_of(text):
    """What stood on the screen, line by line; a bar writes many states of one line."""
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    return [part.rstrip() for line in plain.split("\n") for part in line.split("\r")]


def run(monkeypatch, *arguments, columns=None, prog="retrieval-interp"):
    """`retrieval-interp ARGUMENTS` on a terminal of so many columns, or through a pipe if None.

    Returns:
        The exit status, standard output and standard error.
    """
    monkeypatch.setattr(sys, "argv", [prog, *map(str, arguments)])
    monkeypatch.setattr("retrieval_interp.commands.command._on_signals", lambda handler: None)
    out, errors, status = StringIO(), StringIO(), 0
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        out, errors = Screen(), Screen()
        monkeypatch.setenv("COLUMNS", str(columns))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        try:
            cli.run()
        except SystemExit as stop:
            status = stop.code or 0
    return status, out.getvalue(), errors.getvalue()
