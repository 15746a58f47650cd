import contextlib
import re
import signal
import warnings
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


@pytest.fixture
def without_type_checks():
    """As users have it: the tests' own type checks forbid some wrong arguments."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(scope="session")
def run_command_in_process():
    """Runs `retrieval-interp WORDS` in this process, which saves loading libraries.

    `run_command_in_process("ablate", "--ckpt", "small", cwd=folder)` gives what `subprocess.run`
    does: `returncode`, `stdout` and `stderr`. Signals and warnings stay as they are.
    """

    def run(*words, cwd=".", prog="retrieval-interp"):
        from retrieval_interp import __main__ as commands

        status, out, err = 0, StringIO(), StringIO()
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(cwd)
            patch.setattr("sys.argv", [prog, *map(str, words)])
            patch.setattr("signal.signal", lambda number, handler: None)
            patch.setattr("warnings.showwarning", warnings.showwarning)
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                try:
                    commands.run()
                except SystemExit as stop:
                    status = stop.code or 0
        printed = out.getvalue()
        assert "\x1b" not in printed and "\r" not in printed  # as through a pipe
        if all(len(word) < 40 for word in printed.split()):  # no long name of a file
            assert [line for line in printed.splitlines() if len(line) > 100] == []
        return CompletedProcess(words, status, printed, err.getvalue())

    return run


def keys_of(data):
    """The keys in a command's JSON, but for those of a task and of versions."""
    if isinstance(data, dict):
        inner = [value for key, value in data.items() if key not in ("task", "versions")]
        return data.keys() | keys_of(inner)
    return set().union(*map(keys_of, data)) if isinstance(data, list) else set()


@pytest.fixture(scope="session")
def undocumented():
    """The keys of a JSON that these commands' sections of docs/commands.md do not have."""
    text = (Path(__file__).parent.parent / "docs/commands.md").read_text()
    sections = {section.partition("\n")[0]: section for section in text.split("\n## ")}

    def missing(data, *commands):
        quoted = re.findall(r"`([^`\n]+)`", " ".join(map(sections.get, commands)))
        return keys_of(data) - set(re.findall(r"[\w-]+", " ".join(quoted)))

    return missing


@pytest.fixture(autouse=True)
def seeded():
    """Draw the same numbers whatever ran before."""
    torch.manual_seed(0)


@pytest.fixture
def rules_reset():
    """Forget rules and mechanisms that a test adds."""
    from retrieval_interp.circuits import mechanisms

    known, kinds = [*mechanisms.RULES], {**mechanisms.MECHANISMS}
    yield
    mechanisms.RULES[:] = known
    mechanisms.MECHANISMS.clear()
    mechanisms.MECHANISMS.update(kinds)
