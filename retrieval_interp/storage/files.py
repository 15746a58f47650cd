"""Atomic writes, folders locked by one process, and reading of text and JSON lines."""

import glob
import json
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from retrieval_interp.tasks.errors import InputError
from retrieval_interp.tasks.structured import from_data

if TYPE_CHECKING:
    from filelock import BaseFileLock

T = TypeVar("T")
_TEMPORARY = ".writing-"


def write_whole(path: Path, content: bytes | str) -> None:
    """Write a file under a temporary name beside it, then rename it into place.

    A reader sees the old file or the new one, never half of one; after a failure the old file is
    still there and nothing else. Temporary files that killed processes left for the same name are
    removed.

    Raises:
        InputError: the folder is missing, not writable, or full.
    """
    data = content.encode() if isinstance(content, str) else content
    prefix = f"{_TEMPORARY}{path.name[:50]}-"
    temporary = path.with_name(f"{prefix}{os.getpid()}-{secrets.token_hex(4)}")
    try:
        try:
            with open(temporary, "xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        for leftover in path.parent.glob(glob.escape(prefix) + "*"):
            if not _is_running(leftover.name.removeprefix(prefix).partition("-")[0]):
                leftover.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(
            f"{path}: expected to write a file of {len(data)} bytes, found: "
            f"{error.strerror or error}; what was there before is unchanged"
        ) from None


def _is_running(process: str) -> bool:
    """Whether a process, named by its id, may still be running."""
    if os.name != "posix" or not process.isdecimal():
        return True
    try:
        os.kill(int(process), 0)  # sends nothing
    except ProcessLookupError:
        return False
    except OSError:  # another user's
        pass
    return True


def write_json(path: Path, data: Any) -> None:
    """Write indented JSON with `write_whole`, which see for its errors."""
    write_whole(path, json.dumps(data, indent=2) + "\n")


def check_writable(path: Path | None) -> None:
    """Refuse an output path that cannot be written before the work starts rather than after."""
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
    """Refuse a run that is not a folder before anything is loaded."""
    if not run.is_dir():
        raise InputError(f"{run}: expected a run folder, as train writes it, found no folder")


def is_temporary(path: Path) -> bool:
    """Whether `write_whole` is writing this file, or was when its process was killed."""
    return path.name.startswith(_TEMPORARY)


def check_own(path: Path, name: str, whose: str) -> bool:
    """Whether a folder holds the file that marks it as `whose`, such as `a run's`.

    Raises:
        InputError: it does not, and is a file or a folder with other files.
    """
    if (path / name).exists():
        return True
    found = "a file" if path.is_file() else ""
    for child in path.iterdir() if path.is_dir() else ():
        empty = child.is_dir() and not any(child.iterdir())
        if child.name != "lock" and not empty and not is_temporary(child):
            found = f"a folder with other files and no {name}; give another --out"
    if found:
        raise InputError(f"{path}: expected a new folder or {whose}, found {found}")
    return False


def lock_folder(path: Path, work: str) -> "BaseFileLock":
    """Lock a folder for this process, creating it if missing; deletes a killed process's leftovers.

    Raises:
        InputError: it cannot be written, or another process holds it, and it is not `work`, such as
            `a run that no other process is training`.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(path / "lock", timeout=0)
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout:
        raise InputError(
            f"{path}: expected {work}, found one that is; wait for it or give another --out"
        ) from None
    except (OSError, NotImplementedError) as error:
        found = getattr(error, "strerror", None) or error
        raise InputError(f"{path}: expected a folder that can be written, found: {found}") from None
    remove_leftovers(path)
    return lock


def remove_leftovers(folder: Path) -> None:
    """Delete the temporary files of killed processes."""
    for leftover in folder.rglob(_TEMPORARY + "*"):
        if leftover.is_file():
            leftover.unlink(missing_ok=True)


def read_part(cls: type[T], data: Any, where: str) -> T:
    """`from_data` of the keys that a dataclass has; others are ignored."""
    if isinstance(data, dict):
        data = {field.name: data[field.name] for field in fields(cls) if field.name in data}  # type: ignore[arg-type]
    part: T = from_data(cls, data, where)
    return part


def check_same(wanted: Mapping[str, Any], found: Mapping[str, Any], path: Path, what: str) -> None:
    """Refuse to resume a run or sweep with other settings; names the first that differs."""
    old = flatten(found)
    for key, value in flatten(wanted).items():
        if value != old.get(key):
            raise InputError(
                f"{path}: expected a {what} with {key} = {value}, found one with {key} = "
                f"{old.get(key)}; give another --out, or the same settings to resume"
            )


def flatten(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested JSON data as one level, with keys such as `model.layers`."""
    flat: dict[str, Any] = {}
    for key, value in data.items():
        nested = isinstance(value, dict)
        flat |= flatten(value, f"{prefix}{key}.") if nested else {prefix + key: value}
    return flat


def read_text(path: Path, what: str, largest: int = 50_000_000) -> str:
    """Read a text file.

    Raises:
        InputError: it is missing, a folder, unreadable, too large or not UTF-8.
    """
    try:
        if path.exists() and not path.is_file():
            raise OSError("not a regular file")
        if path.stat().st_size > largest:
            raise OSError(f"more than {largest} bytes")
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise InputError(f"{path}: expected {what} in UTF-8 text, found other bytes") from None
    except (OSError, ValueError) as error:
        found = getattr(error, "strerror", None) or error
        raise InputError(f"{path}: expected {what}, found: {found}") from None


def read_json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a JSON-lines file, without a last line that a killed process left unfinished.

    Raises:
        InputError: any other line is not a JSON object.
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


def append_json_lines(path: Path, rows: Iterable[Any]) -> None:
    """Append one line of JSON per row to a run's log.

    Raises:
        InputError: the file cannot be written.
    """
    try:
        with open(path, "a", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    except OSError as error:
        raise InputError(
            f"{path}: expected to append a line, found: {error.strerror}; the last checkpoint is "
            "whole, resume from it"
        ) from None
