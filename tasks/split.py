"""The splits of a task, which never share an example."""

from typing import Literal, get_args

from retrieval_interp.tasks.errors import InputError

Split = Literal["train", "validation", "discovery", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)


def check_draw(seed: int, split: str) -> None:
    """Check the seed and the split of a sample."""
    if not 0 <= seed < 2**64:
        raise InputError(f"sample: expected a seed from 0 to 2^64 - 1, found {seed}")
    if split not in SPLITS:
        raise InputError(f"sample: expected a split of {sorted(SPLITS)}, found {split!r}")
