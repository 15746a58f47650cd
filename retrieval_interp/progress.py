"""Progress on a terminal or in a notebook; nothing elsewhere."""

import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from retrieval_interp.circuits.discovery.watch import SearchState, Watch

T = TypeVar("T")
_CLOCK = 9  # characters after the text, for the time


def in_notebook() -> bool:
    """Whether a bar can be seen although stderr is no terminal."""
    return "ipykernel.zmqshell" in sys.modules


def progress_bar(items: Iterable[T], what: str) -> Iterable[T]:
    """Show a bar on a terminal or in a notebook, and nothing elsewhere."""
    from tqdm.auto import tqdm

    hidden = False if in_notebook() else None  # None: shown on a terminal
    bar: Iterable[T] = tqdm(items, desc=what, leave=False, disable=hidden, dynamic_ncols=True)
    return bar


@contextmanager
def search_line() -> Iterator["Watch"]:
    """Show what a search tries, how many circuits it scored, the best one so far, and the time."""
    from tqdm.auto import tqdm

    with tqdm(
        desc="searching",
        bar_format="{desc} [{elapsed}]",
        leave=False,
        disable=False if in_notebook() else None,
        miniters=1,
    ) as line:

        def show(state: "SearchState") -> None:
            room = None if in_notebook() else shutil.get_terminal_size().columns - _CLOCK
            line.set_description_str(str(state)[:room], refresh=False)
            line.update()

        yield show


def line_with(progress: Any) -> "AbstractContextManager[Watch | None]":
    """`search_line` where bars are shown, else nothing to watch with."""
    return search_line() if progress is progress_bar else nullcontext(None)
