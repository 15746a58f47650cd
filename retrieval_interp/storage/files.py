"""Find, read and write files; imports no heavy library."""

import json
import math
import os
import secrets
from collections.abc import Iterator
from datetime import datetime, timezone
from importlib import metadata, resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retrieval_interp.tasks.messages import InputError, nearest
from retrieval_interp.tasks.structured import from_data

if TYPE_CHECKING:
    from filelock import BaseFileLock

_TEMPORARY = ".writing-"


def write_whole(path: Path, content: bytes | str) -> None:
    """Write a file under a temporary name, then rename it: no reader sees half a file.

    If it is a link, its target is replaced; pipes and devices, such as /dev/stdout, are written to.
    """
    data = content.encode() if isinstance(content, str) else content
    try:
        if _streams(path):
            with open(path, "ab") as file:
                file.write(data)
            return
        path = path.resolve()
        temporary = path.with_name(f"{_TEMPORARY}{path.name[:50]}-{secrets.token_hex(4)}")
        try:
            with open(temporary, "xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(
            f"{path}: expected to write a file of {len(data)} bytes, found: "
            f"{error.strerror or error}; what was there before is unchanged"
        ) from None


def _streams(path: Path) -> bool:
    return path.exists() and (not path.is_file() or path.is_relative_to("/dev"))


def write_json(path: Path, data: Any) -> None:
    """Write indented JSON with `write_whole`, with null for infinity and NaN."""
    write_whole(path, json.dumps(_finite(data), indent=2) + "\n")


def _finite(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def as_path(name: Any) -> Path:
    """Check a file name that a user gave, and return it as a path."""
    return name if isinstance(name, Path) else Path(from_data(str, name, "file name"))


def writable(name: Any) -> Path:
    """Check that a file can be written, before any work starts, and return its path."""
    path = as_path(name)
    if path.is_dir():
        raise InputError(f"{path}: expected the name of a file to write, found a folder")
    places = [] if _streams(path) else [path.resolve().parent]
    if path.exists():
        places.append(path)
    if not all(os.access(place, os.W_OK) for place in places):
        raise InputError(f"{path}: expected a writable file in an existing folder; create it")
    return path


def check_own(path: Path, name: str, whose: str) -> bool:
    """Say if a folder has the file that marks it as `whose`; raise if it has only others."""
    if (path / name).exists():
        return True
    files = [child.name for child in [path, *path.rglob("*")] if child.is_file()]
    if any(file != "lock" and not file.startswith(_TEMPORARY) for file in files):
        raise InputError(
            f"{path}: expected a new folder or {whose}, found other files and no {name}; give "
            "another --out"
        )
    return False


def lock_folder(path: Path, work: str) -> "BaseFileLock":
    """Lock a folder for some `work`; make it if missing, delete what a killed process left."""
    from filelock import FileLock, Timeout

    path.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path / "lock", timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise InputError(
            f"{path}: expected {work}, found one that is; wait for it or give another --out"
        ) from None
    for leftover in path.rglob(_TEMPORARY + "*"):
        leftover.unlink(missing_ok=True)
    return lock


def check_same(wanted: Any, old: Any, path: Path, kind: str, key: str = "") -> None:
    """Refuse to resume a run or sweep (`kind`) with other settings; name the first that differs."""
    if isinstance(wanted, dict) and isinstance(old, dict):
        for name, value in wanted.items():
            check_same(value, old.get(name), path, kind, f"{key}.{name}" if key else name)
    elif wanted != old:
        raise InputError(
            f"{path}: expected a {kind} with {key} = {wanted}, found one with {key} = {old}; give "
            "another --out, or the same settings to resume"
        )


def read_text(path: Path, kind: str) -> str:
    """Read a UTF-8 text file; `kind` says what it should be, as in "a circuit"."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "bytes that are not UTF-8"
        raise InputError(f"{path}: expected {kind}, found: {reason}") from None


def read_json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a JSON-lines file; a last line that is cut off is left out."""
    lines = read_text(path, "JSON lines").splitlines() if path.exists() else []
    for number, line in enumerate(lines, start=1):
        try:
            yield json.loads(line)
        except ValueError:
            if number < len(lines):
                raise InputError(
                    f"{path}: expected JSON in line {number}, found {line!r:.60}; fix or remove it"
                ) from None


def shipped_checkpoints() -> dict[str, Path]:
    """Return the name and file of every checkpoint in the package."""
    folder = Path(str(resources.files("retrieval_interp"))) / "checkpoints"
    return {path.stem: path for path in sorted(folder.glob("*.safetensors"))}


def checkpoint_files(path: Path) -> dict[int, Path]:
    """Return the checkpoints of a run folder, by rising step."""
    checkpoints = path.glob("checkpoints/step-*.safetensors")
    return dict(sorted((int(file.stem.removeprefix("step-")), file) for file in checkpoints))


def last_step(path: Path) -> int:
    """Return the step of a run folder's last checkpoint, or 0."""
    return max(checkpoint_files(path), default=0)


def find_checkpoint(name: str) -> Path:
    """Return the file of a shipped name, a file, or a run folder (its last checkpoint)."""
    shipped = shipped_checkpoints()
    if name in shipped:
        return shipped[name]
    path = Path(name)
    if path.is_dir():
        if not (checkpoints := checkpoint_files(path)):
            raise InputError(
                f"{path}: expected a run folder with checkpoints/step-*.safetensors, found none; "
                "train until the first one is written"
            )
        return checkpoints[max(checkpoints)]
    if path.is_file():
        return path
    where = "; those of steps are in the repository alone, in retrieval_interp/checkpoints"
    expected = nearest(name, shipped, "a shipped name, as retrieval-interp list shows them")
    raise InputError(
        f"checkpoint {name!r}: expected {expected}, a checkpoint file or a run folder, found none"
        f"{where * ('-step-' in name)}"
    )


def provenance(command: str) -> dict[str, Any]:
    """Return the command as typed, the date, and the versions of the main libraries."""
    libraries = ("retrieval-interp", "torch", "transformer-lens")
    return {
        "command": command,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "versions": {name: metadata.version(name) for name in libraries},
    }
