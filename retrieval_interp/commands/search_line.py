"""One line, on a terminal or in a notebook, that says where a search for a circuit is."""

import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from retrieval_interp.circuits.discovery.watch import SearchState, Watch
from retrieval_interp.circuits.scores.scorer import Progress
from retrieval_interp.commands.command import in_notebook, progress_bar

_CLOCK = 9  # characters after the text, for the time


@contextmanager
def search_line() -> Iterator[Watch]:
    """Show what a search tries, how many circuits it scored, the best one so far, and the time."""
    from tqdm.auto import tqdm

    with tqdm(
        desc="searching",
        bar_format="{desc} [{elapsed}]",
        leave=False,
        disable=False if in_notebook() else None,
        miniters=1,
    ) as line:

        def show(state: SearchState) -> None:
            room = None if in_notebook() else shutil.get_terminal_size().columns - _CLOCK
            line.set_description_str(str(state)[:room], refresh=False)
            line.update()

        yield show


def line_with(progress: Progress) -> AbstractContextManager[Watch | None]:
    """`search_line` where bars are shown, else nothing to watch with."""
    return search_line() if progress is progress_bar else nullcontext(None)
