"""Whatever is read from outside gives a value or one line that says what is wrong, nothing else."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from faults.fuzz import TARGETS, check
from faults.fuzz_checkpoints import checkpoint_content, checkpoint_tensors, signed
from faults.fuzz_files import log_data, result_data, watch_data
from faults.fuzz_guard import Outcome
from faults.fuzz_inputs import dumps
from faults.fuzz_run import TASKS, run
from retrieval_interp.storage.run_folder import checkpoint_files
from tasks import InputError, RetrievalTask
from tasks.errors import LONGEST
from tasks.words.prompts import EquationsPrompt

EXAMPLES = 30
INSPECT = "inspect_ai"
ROOT = Path(__file__).parent.parent


def child(*words):
    """In a process without the tests' own type checks, which forbid wrong arguments."""
    command = [sys.executable, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)


def test_inputs_give_a_value_or_one_line(tmp_path):
    names = [name for name in TARGETS if name != "inspect-log" or importlib.util.find_spec(INSPECT)]
    options = ("--examples", str(EXAMPLES), "--out", str(tmp_path / "findings"))
    done = child("-m", "faults.fuzz", *options, *names)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split() for line in done.stdout.splitlines()[1:]]
    assert [name for name, *_ in rows] == names and not (tmp_path / "findings").exists()
    for _, tried, accepted, refused, findings, _ in rows:
        assert int(tried) == int(accepted) + int(refused) >= EXAMPLES and findings == "0"


JUDGED = """
import sys, warnings
from pathlib import Path
from faults import fuzz_guard
from faults.fuzz_guard import LARGE, LONGEST, install, judge
from tasks import InputError

def spin(_):
    while True:
        pass

def refuse(text):
    error = InputError("")
    error.args = (text,)
    raise error

new = Path(sys.argv[1])
fuzz_guard.SLOW, fuzz_guard.HANGING = 0.05, 5
install()
for text, read in {
    "KeyError in": lambda _: {}["missing"],
    "UserWarning: beware": lambda _: warnings.warn("beware"),
    "did open": lambda _: new.write_text("x"),
    "did os.remove": lambda _: new.unlink(missing_ok=True),
    "did exec": lambda _: exec("x = 1"),
    "took": lambda _: sum(range(10_000_000)),
    "gave up": spin,
    "memory grew": lambda _: bytearray(LARGE + 2**27).count(1),
    "an empty message": lambda _: refuse(""),
    "a message of": lambda _: refuse("x" * (LONGEST + 1)),
    "a message with control": lambda _: refuse("a\\nb"),
}.items():
    outcome = judge(read, None)
    assert outcome.kind == "finding" and outcome.text.startswith(text), (text, outcome)
assert judge(lambda _: refuse("a line"), None) == ("refused", "a line")
assert judge(len, "value") == ("accepted", "")
"""


def test_the_judge_finds_what_is_not_allowed(tmp_path):
    done = child("-c", JUDGED, str(tmp_path / "new"))
    assert done.returncode == 0, done.stderr


def test_undamaged_inputs_are_accepted(tmp_path):
    for kind in range(len(TASKS)):
        whole = signed(checkpoint_tensors(kind), checkpoint_content(kind))
        assert check(TARGETS["checkpoint"], whole, tmp_path) == Outcome("accepted")


def test_a_digest_made_right_again_reaches_the_checks_inside(tmp_path):
    content = checkpoint_content(0)
    content["model"]["layers"] = 3
    outcome = check(TARGETS["checkpoint"], signed(checkpoint_tensors(0), content), tmp_path)
    assert outcome.kind == "refused" and "found 2 layers" in outcome.text


# What fuzzing has found


def test_messages_are_one_printable_line_of_bounded_length():
    error = InputError(f"one\ntwo \x1b[2J \ud800 {'x' * 5000} end")
    assert str(error).startswith("one two \\x1b[2J \\ud800 x") and str(error).endswith("x end")
    assert len(str(error)) == LONGEST and str(error).isprintable()
    assert str(InputError(str(error))) == str(error)


def test_a_cycle_of_many_nodes_is_named_at_once(tmp_path):
    names = [f"n{number}" for number in range(50_000)]
    text = "; ".join(f"{name} <- {before}" for name, before in zip(names, [names[-1], *names]))
    outcome = check(TARGETS["graph"], text, tmp_path)
    assert outcome.kind == "refused" and "n0 <- n49999 <- n49998" in outcome.text


def test_a_file_cannot_declare_more_than_it_holds(tmp_path):
    content, tensors = checkpoint_content(0), checkpoint_tensors(0)
    content["model"] |= {"d_model": 32768, "d_head": 1}  # MLPs of 69 GB
    tensors = {**tensors, "blocks.0.attn.W_Q": torch.zeros(1, 32768, 1)}
    outcome = check(TARGETS["checkpoint"], signed(tensors, content), tmp_path)
    assert outcome.kind == "refused" and "expected at least 17" in outcome.text


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
    assert check(TARGETS["metrics"], line, tmp_path).kind == "refused"
    for number in (10**400, float("inf"), float("nan")):
        heading, *rows = watch_data()[0]
        rows[0]["partial_losses"] = [number]
        content = "\n".join(map(dumps, (heading, *rows))).encode()
        assert check(TARGETS["watch"], content, tmp_path).kind == "refused"
        series = run().to_dict()
        series["losses"][0]["validation_loss"] = number
        assert check(TARGETS["series"], dumps(series).encode(), tmp_path).kind == "refused"


@pytest.mark.parametrize("key", ["versions", "validation_loss"])
def test_a_sweep_result_is_checked_inside(key, tmp_path):
    (result,) = result_data()
    changed = {**result, key: {"torch": ["2"]} if key == "versions" else 10**400}
    for data, kind in ((result, "accepted"), (changed, "refused")):
        assert check(TARGETS["sweep-result"], dumps(data).encode(), tmp_path).kind == kind


def test_samples_of_a_log_are_checked_inside(tmp_path):
    pytest.importorskip("inspect_ai", reason="needs the extra [llm]")
    (log,) = log_data()
    target = TARGETS["inspect-log"]
    assert check(target, dumps(log).encode(), tmp_path).kind == "accepted"
    for key, value in (("steps", [1]), ("chance", None), ("chance", "1"), ("steps", 10**400)):
        changed = json.loads(dumps(log))
        changed["samples"][0]["metadata"][key] = value
        outcome = check(target, dumps(changed).encode(), tmp_path)
        assert outcome.kind == "refused" and "steps, chance, attempts" in outcome.text


def test_a_number_of_another_alphabet_is_no_step(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    for step in ("²", "٣", "7"):
        (tmp_path / "checkpoints" / f"step-{step}.safetensors").touch()
    assert list(checkpoint_files(tmp_path)) == [7]
