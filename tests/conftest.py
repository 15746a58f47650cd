import contextlib
import gc
import importlib
import signal
import sys
import warnings
from typing import NamedTuple

import jaxtyping
import pytest
import torch
from hypothesis import HealthCheck, settings

# Nothing of this project is imported here: jaxtyping has to see its modules first, and older
# versions look for them only after this file.
torch.set_num_threads(1)

# Processes started by tests must react to signals also where the tests run under nohup or in the
# background, which ignore some.
signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP"):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# A machine under load is slow, and no example is to be refused for that.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")


@pytest.fixture
def task():
    from retrieval_interp.tasks import RetrievalTask

    return RetrievalTask(chains=3, steps=2, dim=4)


@pytest.fixture
def config():
    from retrieval_interp.model import ModelConfig

    return ModelConfig(layers=3, heads=2, d_model=16)


@pytest.fixture
def model(task, config):
    from retrieval_interp.model import build_model

    return build_model(config, task, seed=0).eval()


@pytest.fixture
def without_type_checks():
    """As users have it: the tests' own type checks forbid some wrong arguments, and take time."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


class Finished(NamedTuple):
    """A command that has ended: its exit status, and what it wrote."""

    returncode: int
    stdout: str
    stderr: str


@contextlib.contextmanager
def _settings_kept():
    """What a command changes in its process, which is ours here, is put back."""
    numbers = [number for name in ("SIGINT", "SIGTERM", "SIGHUP")
               if (number := getattr(signal, name, None))]  # fmt: skip
    handlers = {number: signal.getsignal(number) for number in numbers}
    kept = gc.get_threshold(), torch.get_num_threads(), warnings.showwarning, sys.unraisablehook
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        gc.set_threshold(*kept[0])
        torch.set_num_threads(kept[1])
        warnings.showwarning, sys.unraisablehook = kept[2:]


@pytest.fixture
def process_settings_kept():
    with _settings_kept():
        yield


def _run_in_process(name, argv, cwd=None):
    from retrieval_interp.commands.command import run_command

    module = importlib.import_module(f"retrieval_interp.commands.{name}")
    status = 0
    with pytest.MonkeyPatch.context() as patch, _settings_kept():
        patch.setenv("OMP_WAIT_POLICY", "PASSIVE")
        patch.setattr(sys, "argv", [name, *map(str, argv)])
        if cwd is not None:
            patch.chdir(cwd)
        try:
            run_command(module.main, f"retrieval-interp {name}")
        except SystemExit as stop:
            status = stop.code or 0
    return status


@pytest.fixture
def run_command_in_process(capsys):
    """Runs `python -m retrieval_interp.NAME ARGV` in this process, which saves loading libraries.

    `run_command_in_process("ablate", "--ckpt", "small", cwd=folder)` gives what `subprocess.run`
    does: `returncode`, `stdout` and `stderr`.
    """

    def run(name, *argv, cwd=None):
        capsys.readouterr()  # what came before is not the command's
        status = _run_in_process(name, argv, cwd)
        return Finished(status, *capsys.readouterr())

    return run


@pytest.fixture(scope="module")
def run_command_once():
    """The same for fixtures of a module, which know no capsys."""

    def run(name, *argv, cwd=None):
        from io import StringIO

        out, err = StringIO(), StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = _run_in_process(name, argv, cwd)
        return Finished(status, out.getvalue(), err.getvalue())

    return run
