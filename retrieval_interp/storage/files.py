"""Files written whole or not at all, folders held by one process, text and JSON lines read."""

import contextlib
import fcntl
import glob
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, TextIO

from tasks import InputError

_TEMPORARY = ".writing-"


def write_whole(path: Path, content: bytes | str) -> None:
    """Write a file under a temporary name beside it, then rename it into place.

    A reader sees the old file or the new one, never half of one; after a failure the old file
    stands and nothing else is left behind. What a killed process was writing under the same name
    is removed.

    Raises:
        InputError: the folder is missing, not writable, or full.
    """
    data = content.encode() if isinstance(content, str) else content
    prefix = f"{_TEMPORARY}{path.name[:50]}-"
    temporary = None
    try:
        descriptor, temporary = tempfile.mkstemp(prefix=prefix, dir=path.parent)
        with os.fdopen(descriptor, "wb") as file:
            _lock(file)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            umask = os.umask(0)
            os.umask(umask)
            os.chmod(temporary, 0o666 & ~umask)
            os.replace(temporary, path)
        temporary = None
        for leftover in path.parent.glob(glob.escape(prefix) + "*"):
            _remove_unlocked(leftover)
    except BaseException as error:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        if isinstance(error, OSError):
            raise InputError(
                f"{path}: expected to write a file of {len(data)} bytes, found: "
                f"{error.strerror or error}; what was there before is unchanged"
            ) from None
        raise


def _lock(file: IO[Any]) -> bool:
    """Hold a file for this process, if no other does."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _remove_unlocked(leftover: Path) -> None:
    with contextlib.suppress(OSError), open(leftover, "rb") as file:
        if _lock(file):
            leftover.unlink()


def check_writable(path: Path | None) -> None:
    """Refuse an output path before the work starts rather than after.

    Raises:
        InputError: its folder does not exist or cannot be written, or it is a folder itself.
    """
    if path is None:
        return
    try:
        exists, regular, folder = os.path.lexists(path), path.is_file(), path.is_dir()
        path.resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise InputError(f"{path!r:.80}: expected a file to write, found: {error!s:.80}") from None
    if folder:
        raise InputError(f"{path}: expected the name of a file to write, found a folder")
    if exists and not regular:
        raise InputError(f"{path}: expected a new or a regular file to write, found neither")
    if not path.parent.is_dir():
        raise InputError(
            f"{path}: expected an existing folder to write into, found none at "
            f"{path.parent}; create it first"
        )
    if not os.access(path.parent, os.W_OK):
        raise InputError(f"{path}: expected a folder that can be written, {path.parent} cannot")


def check_run_folder(run: Path) -> None:
    """Refuse what is no folder before anything is loaded.

    Raises:
        InputError: with what was expected.
    """
    if not run.is_dir():
        raise InputError(f"{run}: expected a run folder, as train writes it, found no folder")


def is_temporary(path: Path) -> bool:
    """Whether a file is being written, or was when its process was killed."""
    return path.name.startswith(_TEMPORARY)


def lock_folder(path: Path, work: str) -> TextIO:
    """Hold a folder for this process, creating it if it is missing, until what this returns closes.

    Args:
        path: the folder.
        work: what is done in it, as in `a run that no other process is training`.

    Raises:
        InputError: it cannot be written, or another process holds it.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = open(path / "lock", "w")  # noqa: SIM115
    except OSError as error:
        raise InputError(
            f"{path}: expected a folder that can be written, found: {error.strerror}"
        ) from None
    if not _lock(lock):
        lock.close()
        raise InputError(
            f"{path}: expected {work}, found one that is; wait for it or give another --out"
        ) from None
    return lock


def check_held(lock: TextIO) -> None:
    """Refuse to go on in a folder whose lock is gone: another process may be at work in it.

    Raises:
        InputError: it is.
    """
    try:
        held = os.path.samestat(os.stat(lock.name), os.fstat(lock.fileno()))
    except OSError:
        held = False
    if not held:
        raise InputError(
            f"{lock.name}: expected the lock of this process, found that it was removed; the same "
            "command goes on from what is saved"
        )


def remove_leftovers(folder: Path) -> None:
    """Delete what an earlier process was writing when it was killed."""
    for leftover in folder.rglob(_TEMPORARY + "*"):
        if leftover.is_file():
            leftover.unlink(missing_ok=True)


def read_text(path: Path, what: str, largest: int = 50_000_000) -> str:
    """Read a text file.

    Raises:
        InputError: it is missing, a folder, unreadable, too large or not UTF-8.
    """
    try:
        if path.exists() and not path.is_file():
            raise InputError(f"{path}: expected {what}, found what is not a regular file")
        if path.stat().st_size > largest:
            raise InputError(f"{path}: expected {what} of at most {largest} bytes, found more")
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise InputError(f"{path}: expected {what} in UTF-8 text, found other bytes") from None
    except (OSError, ValueError) as error:
        found = getattr(error, "strerror", None) or error
        raise InputError(f"{path}: expected {what}, found: {found}") from None


def read_json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a JSON-lines file, less a last one that a killed process left unfinished.

    Raises:
        InputError: another line is not a JSON object.
    """
    if not path.exists():
        return
    lines = read_text(path, "JSON lines", largest=2_000_000_000).splitlines()
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
            if number == len(lines):
                return
        if not isinstance(row, dict):
            raise InputError(
                f"{path}: expected a JSON object in line {number}, found {line!r:.60}; mend or "
                "remove that line"
            )
        yield row
