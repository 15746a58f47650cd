"""Finding checkpoints without loading the libraries that read them."""

from importlib import resources
from pathlib import Path

from retrieval_interp.tasks.errors import InputError


def shipped_checkpoints() -> dict[str, Path]:
    """Name and file of every checkpoint in the package."""
    folder = Path(str(resources.files("retrieval_interp"))) / "checkpoints"
    return {path.stem: path for path in sorted(folder.glob("*.safetensors"))}


def find_checkpoint(name: str) -> Path:
    """The file of a shipped name, a file, or a run folder (its last checkpoint)."""
    shipped = shipped_checkpoints()
    if name in shipped:
        return shipped[name]
    path = Path(name)
    if path.is_dir():
        found = sorted(path.glob("checkpoints/step-*.safetensors"), key=lambda p: (len(p.name), p))
        if not found:
            raise InputError(
                f"{path}: expected a run folder with checkpoints/step-*.safetensors, found none"
            )
        return found[-1]
    if path.is_file():
        return path
    raise InputError(
        f"checkpoint {name!r}: expected a file, a run folder or one of: "
        f"{', '.join(shipped) or '(none shipped)'}; found none of these"
    )
