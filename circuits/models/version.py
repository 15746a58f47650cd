"""Which TransformerLens is installed; does not load it.

Version 4 has no HookedTransformer: models are opened there (`circuits.models.bridge`), not trained.
"""

from importlib.metadata import version

from retrieval_interp.tasks.errors import InputError


def has_hooked_transformer() -> bool:
    """Whether the installed TransformerLens is older than 4."""
    return int(version("transformer-lens").partition(".")[0]) < 4


def check_trainable() -> None:
    """Refuse what needs a HookedTransformer.

    Raises:
        InputError: TransformerLens is 4 or newer.
    """
    if not has_hooked_transformer():
        raise InputError(
            "expected transformer-lens 3.9 for training and compiled circuits, found "
            f'{version("transformer-lens")}; do `pip install "transformer-lens<4"`'
        )
