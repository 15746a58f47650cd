import contextlib
import importlib
import re
import signal
import sys
import warnings
from collections import Counter
from io import StringIO
from pathlib import Path
from subprocess import CompletedProcess

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


@pytest.fixture(scope="session")
def small():
    """The shipped checkpoint."""
    import retrieval_interp as ri

    return ri.load_checkpoint("small")


@pytest.fixture(scope="session")
def hooked():
    """A HookedTransformer on tokens, for the task `Lookup`."""
    from tests.models import hooked_model

    return hooked_model()


@pytest.fixture(scope="session")
def llama(tmp_path_factory):
    """An untrained bridge, to be left as it is."""
    from tests.models import untrained_bridge

    return untrained_bridge("llama", tmp_path_factory.mktemp("llama"))


@pytest.fixture
def bench(model, task):
    import retrieval_interp as ri

    return ri.open(model, task, examples=8)


class FirstCalls(type(jaxtyping.config)):
    """Types are checked in the first calls of every function in a test: all take a third longer."""

    off, calls = False, Counter()

    @property
    def jaxtyping_disable(self):
        if not self.off:
            function = sys._getframe(1).f_locals["fn"]  # jaxtyping's wrapper asks
            self.calls[function] += 1
        return self.off or self.calls[function] > 10

    @jaxtyping_disable.setter
    def jaxtyping_disable(self, off):
        self.off = off


jaxtyping.config.__class__ = FirstCalls


@pytest.fixture(autouse=True)
def types_are_checked_again():
    FirstCalls.calls.clear()


@pytest.fixture
def without_type_checks():
    """As users have it: the tests' own type checks forbid some wrong arguments."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@contextlib.contextmanager
def _settings_kept():
    """What a command changes in its process, which is ours here, is put back."""
    names = [name for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    handlers = {name: signal.getsignal(getattr(signal, name)) for name in names}
    threads, warn = torch.get_num_threads(), warnings.showwarning
    try:
        yield
    finally:
        for name, handler in handlers.items():
            signal.signal(getattr(signal, name), handler)
        torch.set_num_threads(threads)
        warnings.showwarning = warn


@pytest.fixture
def process_settings_kept():
    with _settings_kept():
        yield


@pytest.fixture(scope="session")
def run_command_in_process():
    """Runs `retrieval-interp NAME ARGV` in this process, which saves loading libraries.

    `run_command_in_process("ablate", "--ckpt", "small", cwd=folder)` gives what `subprocess.run`
    does: `returncode`, `stdout` and `stderr`.
    """

    def run(name, *argv, cwd=None):
        from retrieval_interp.commands.command import run_command

        main = importlib.import_module(f"retrieval_interp.commands.{name}").main
        status, out, err = 0, StringIO(), StringIO()
        with pytest.MonkeyPatch.context() as patch, _settings_kept():
            patch.setenv("OMP_WAIT_POLICY", "PASSIVE")
            if cwd is not None:
                patch.chdir(cwd)
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                try:
                    run_command(main, f"retrieval-interp {name}", [*map(str, argv)])
                except SystemExit as stop:
                    status = stop.code or 0
        printed = out.getvalue()
        assert "\x1b" not in printed and "\r" not in printed  # as through a pipe
        if all(len(word) < 40 for word in printed.split()):  # no long name of a file
            assert [line for line in printed.splitlines() if len(line) > 100] == []
        return CompletedProcess(argv, status, printed, err.getvalue())

    return run


@pytest.fixture(scope="session")
def undocumented():
    """The keys of a command's JSON that docs/commands.md does not have."""
    text = (Path(__file__).parent.parent / "docs/commands.md").read_text()
    named = set(re.findall(r"[\w-]+", " ".join(re.findall(r"`([^`\n]+)`", text))))

    def missing(data):
        if isinstance(data, list):
            return set().union(*map(missing, data))
        if not isinstance(data, dict):
            return set()
        parts = (missing(value) for key, value in data.items() if key not in ("task", "versions"))
        return (data.keys() - named).union(*parts)

    return missing


@pytest.fixture
def rules_kept():
    """Forget rules and mechanisms of one's own at the end."""
    from retrieval_interp.circuits import mechanisms

    known, kinds = [*mechanisms.RULES], {**mechanisms.MECHANISMS}
    yield
    mechanisms.RULES[:] = known
    mechanisms.MECHANISMS.clear()
    mechanisms.MECHANISMS.update(kinds)
