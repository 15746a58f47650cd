"""Progress on a terminal or in a notebook; nothing elsewhere."""

import shutil
import sys
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")


def progress_bar(items: Iterable[T], text: str) -> Iterable[T]:
    """Show a bar on a terminal or in a notebook, and nothing elsewhere.

    For a search (of which `yields_states` is true) it is a line that says what is tried, the best
    circuit so far, and the time.
    """
    from tqdm.auto import tqdm

    if getattr(items, "yields_states", False):
        return search_line(items, text)
    bar: Iterable[T] = tqdm(items, desc=text, leave=False, disable=_hidden(), dynamic_ncols=True)
    return bar


def search_line(search: Iterable[Any], text: str = "searching") -> Iterator[Any]:
    """Pass a search's states on, and show the current one."""
    from tqdm.auto import tqdm

    form = "{desc} [{elapsed}]"  # of 9 characters, the time
    with tqdm(desc=text, bar_format=form, leave=False, disable=_hidden(), miniters=1) as line:
        for state in search:
            room = shutil.get_terminal_size().columns - 9 if _hidden() is None else None
            line.set_description_str(str(state)[:room], refresh=False)
            line.update()
            yield state


def _hidden() -> bool | None:
    """For tqdm: False in a notebook; None elsewhere, where a bar is shown on a terminal alone."""
    return False if "ipykernel.zmqshell" in sys.modules else None
