"""Whatever is read from outside gives a value or one line that says what is wrong, nothing else."""

import importlib.util
import json
import warnings

import pytest
import torch
from hypothesis import HealthCheck, given, settings

from retrieval_interp.storage.run_folder import checkpoint_files
from retrieval_interp.tasks import InputError, RetrievalTask
from retrieval_interp.tasks.errors import LONGEST
from retrieval_interp.tasks.words.prompts import EquationsPrompt
from tests.faults import guard
from tests.faults.checkpoints import checkpoint_content, checkpoint_tensors, signed
from tests.faults.damage import dumps
from tests.faults.readers import READERS, log_data, result_data, watch_data
from tests.tiny_run import TASKS, run

needs_inspect = pytest.mark.skipif(
    importlib.util.find_spec("inspect_ai") is None, reason="needs the extra [llm]"
)


@pytest.fixture(autouse=True)
def as_users_have_it(without_type_checks):
    with guard.limited_memory():
        yield


def judge(name, value, folder):
    return READERS[name].judge(value, folder)


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=needs_inspect if n == "inspect-log" else ()) for n in READERS],
)
@pytest.mark.parametrize("examples", [30, pytest.param(3_000, marks=pytest.mark.faults)])
def test_damaged_and_made_up_input_gives_a_value_or_one_line(name, examples, tmp_path):
    # Damaged copies are made of these; the first time takes long, and random numbers.
    run(), log_data() if name == "inspect-log" else None

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=examples < 100,
        suppress_health_check=list(HealthCheck),
    )
    @given(READERS[name].inputs)
    def read(value):
        judge(name, value, tmp_path)

    read()


def spin(_):
    while True:
        pass


def refuse(text):
    error = InputError("")
    error.args = (text,)
    raise error


@pytest.mark.parametrize(
    ("found", "read"),
    [
        ("raised KeyError", lambda _: {}["missing"]),
        ("warned UserWarning: beware", lambda _: warnings.warn("beware", stacklevel=1)),
        ("did open", lambda path: path.write_text("x")),
        ("did os.remove", lambda path: path.unlink(missing_ok=True)),
        ("did exec", lambda _: exec("x = 1")),
        ("did  in", lambda _: sum(range(10_000_000))),
        ("gave up", spin),
        ("memory grew", lambda _: bytearray(guard.LARGE + 2**27).count(1)),
        ("a message of 0", lambda _: refuse("")),
        ("a message of 1001", lambda _: refuse("x" * 1001)),
        ("a message with control", lambda _: refuse("a\nb")),
    ],
)
def test_the_judge_finds_what_is_not_allowed(found, read, tmp_path, monkeypatch):
    monkeypatch.setattr(guard, "SLOW", 0.05 if found == "did  in" else 60)
    monkeypatch.setattr(guard, "HANGING", 0.5 if read is spin else 60)
    with pytest.raises(AssertionError, match=found):
        guard.judge(read, tmp_path / "new")


def test_the_judge_allows_values_and_one_line():
    assert guard.judge(refuse, "a line") == "a line"
    assert guard.judge(len, "value") is None


def test_undamaged_inputs_are_accepted(tmp_path):
    for kind in range(len(TASKS)):
        whole = signed(checkpoint_tensors(kind), checkpoint_content(kind))
        assert judge("checkpoint", whole, tmp_path) is None


def test_a_digest_made_right_again_reaches_the_checks_inside(tmp_path):
    content = checkpoint_content(0)
    content["model"]["layers"] = 3
    refused = judge("checkpoint", signed(checkpoint_tensors(0), content), tmp_path)
    assert "16 missing: blocks.2.attn.W_K" in refused


# What fuzzing has found


def test_messages_are_one_printable_line_of_bounded_length():
    error = InputError(f"one\ntwo \x1b[2J \ud800 {'x' * 5000} end")
    assert str(error).startswith("one two \\x1b[2J \\ud800 x") and str(error).endswith("x end")
    assert len(str(error)) == LONGEST and str(error).isprintable()
    assert str(InputError(str(error))) == str(error)


def test_a_cycle_of_many_nodes_is_named_at_once(tmp_path):
    names = [f"n{number}" for number in range(50_000)]
    text = "; ".join(f"{name} <- {before}" for name, before in zip(names, [names[-1], *names]))
    assert "n0 <- n49999 <- n49998" in judge("graph", text, tmp_path)


def test_a_file_cannot_declare_more_than_it_holds(tmp_path):
    content, tensors = checkpoint_content(0), checkpoint_tensors(0)
    content["model"] |= {"d_model": 32768, "d_head": 1}  # MLPs of 69 GB
    tensors = {**tensors, "blocks.0.attn.W_Q": torch.zeros(1, 32768, 1)}
    refused = judge("checkpoint", signed(tensors, content), tmp_path)
    assert "expected embed.W_E as floats of shape [4, 32768], found float32 of shape" in refused


@pytest.mark.parametrize("huge", [2**31, 10**400, 10**4000], ids=["2^31", "10^400", "10^4000"])
def test_huge_counts_are_refused(huge):
    for make in (
        lambda: RetrievalTask(chains=huge, steps=huge),
        lambda: EquationsPrompt(chains=huge, steps=huge),
    ):
        with pytest.raises(InputError, match=r"to be below 2\^31, found [12]"):
            make()


def test_numbers_beyond_floats_are_refused(tmp_path):
    losses = {"train_loss": 10**400, "validation_loss": 1, "partial_losses": [1], "seconds": 1}
    line = dumps({"step": 1, **losses}).encode()
    assert judge("metrics", line, tmp_path) is not None
    for number in (10**400, float("inf"), float("nan")):
        heading, *rows = watch_data()[0]
        rows[0]["partial_losses"] = [number]
        content = "\n".join(map(dumps, (heading, *rows))).encode()
        assert judge("watch", content, tmp_path) is not None
        series = run().to_dict()
        series["losses"][0]["validation_loss"] = number
        assert judge("series", dumps(series).encode(), tmp_path) is not None


@pytest.mark.parametrize("key", ["versions", "validation_loss"])
def test_a_sweep_result_is_checked_inside(key, tmp_path):
    (result,) = result_data()
    changed = {**result, key: {"torch": ["2"]} if key == "versions" else 10**400}
    assert judge("sweep-result", dumps(result).encode(), tmp_path) is None
    assert judge("sweep-result", dumps(changed).encode(), tmp_path) is not None


@needs_inspect
def test_samples_of_a_log_are_checked_inside(tmp_path):
    (log,) = log_data()
    assert judge("inspect-log", dumps(log).encode(), tmp_path) is None
    for key, value in (("steps", [1]), ("chance", None), ("chance", "1"), ("steps", 10**400)):
        changed = json.loads(dumps(log))
        changed["samples"][0]["metadata"][key] = value
        refused = judge("inspect-log", dumps(changed).encode(), tmp_path)
        assert "steps, chance, attempts" in refused


def test_a_number_of_another_alphabet_is_no_step(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    for step in ("²", "٣", "7"):
        (tmp_path / "checkpoints" / f"step-{step}.safetensors").touch()
    assert list(checkpoint_files(tmp_path)) == [7]
