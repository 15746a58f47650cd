"""One line, on a terminal or in a notebook, that says where a search for a circuit is."""

import shutil
from collections.abc import Iterable, Iterator
from typing import Any

from retrieval_interp.circuits.scores.scorer import Progress
from retrieval_interp.commands.command import in_notebook, progress_bar

_CLOCK = 9  # characters after the text, for the time


def search_line(search: Iterable[Any], what: str = "searching") -> Iterator[Any]:
    """Pass on where a search is, and show it: what it tries, the best so far, and the time."""
    from tqdm.auto import tqdm

    with tqdm(
        desc=what,
        bar_format="{desc} [{elapsed}]",
        leave=False,
        disable=False if in_notebook() else None,
        miniters=1,
    ) as line:
        for state in search:
            room = None if in_notebook() else shutil.get_terminal_size().columns - _CLOCK
            line.set_description_str(str(state)[:room], refresh=False)
            line.update()
            yield state


def line_with(progress: Progress) -> Progress:
    """`search_line` where bars are shown, else what is given."""
    return search_line if progress is progress_bar else progress
