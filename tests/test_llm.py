"""The benchmark of language models, offline: mock models of known answers, a tiny local one."""

import gc
import importlib.util
import json
import math
import random
import sys
from collections import Counter

import pytest

from retrieval_interp.llm.results import accuracy_figure, read_results

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("inspect_ai") is None, reason="needs the extra [llm]"
    ),
    # Inspect calls tenacity as an earlier version of it wanted, and leaves streams open.
    pytest.mark.filterwarnings("ignore:The 'initial' parameter is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Unclosed <MemoryObject:ResourceWarning"),
]
CITIES = ("Amsterdam", "Berlin")


def retrieval(formulation, **options):
    """A task of Inspect, which takes seconds to import, as below."""
    from retrieval_interp.llm import benchmark

    return benchmark.retrieval(formulation, **options)


def ask(task, say, folder, name="mock", **options):
    """The log of a task asked of a model that says `say(sample, attempt)`, and what it was sent."""
    from inspect_ai import eval
    from inspect_ai.model import ModelOutput, ModelUsage, get_model

    samples = {sample.input: sample for sample in task.dataset}
    asked, sent = Counter(), []

    def outputs(messages, tools, tool_choice, config):
        sent.append((messages, config))
        prompt = messages[-1].text
        asked[prompt] += 1
        output = ModelOutput.from_content(name, say(samples[prompt], asked[prompt]))
        output.usage = ModelUsage()  # or Inspect counts tokens with a file from the network
        return output

    model = get_model(f"mockllm/{name}", memoize=False, custom_outputs=outputs)
    (log,) = eval(task, model=model, display="none", log_dir=str(folder), **options)
    gc.collect()  # what Inspect has left open is closed here, not in another module's test
    return log, sent


def right(sample, attempt):
    return sample.target


def blind(sample, attempt):
    return random.Random(sample.input).choice(sample.metadata["acceptable"])


def every_third(sample, attempt):
    return sample.target if attempt % 3 == 0 else f"The answer is {sample.target}."


def never(sample, attempt):
    return "I cannot say."


MODELS = {"right": right, "blind": blind, "babbling": every_third, "mute": never}
LOGS = [  # a model, a formulation and steps
    *(("right", "equations", 1), ("blind", "equations", 1), ("blind", "equations", 5)),
    *(("blind", "relatives", None), ("babbling", "kingdoms", None), ("mute", "functions", None)),
]


def six_questions(formulation, steps):
    return retrieval(formulation, questions=6, **({"steps": steps} if steps else {}))


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("some logs")
    for name, formulation, steps in LOGS:
        ask(six_questions(formulation, steps), MODELS[name], folder, name)
    return folder


def test_an_answer_is_read_without_blanks_stop_quotes_and_capitals():
    from retrieval_interp.llm.benchmark import read_answer

    for text in ("Berlin", " berlin.\n", '"BERLIN."', "'Berlin' .", "“ Berlin ”"):
        assert read_answer(text, CITIES) == "Berlin"
    for text in ("Berlin, Germany", "The answer is Berlin", "**Berlin**", "Paris", '"', ""):
        assert read_answer(text, CITIES) is None


def test_a_model_is_asked_afresh_until_an_acceptable_answer_comes(tmp_path, monkeypatch):
    monkeypatch.setenv("INSPECT_CACHE_DIR", str(tmp_path / "cache"))
    task = retrieval("functions", questions=2)
    log, sent = ask(task, every_third, tmp_path, cache=True)
    assert {config.temperature for _, config in sent} == {1.0}
    about = {"formulation": "functions", "steps": None, "chance": 0.25}
    assert log.status == "success" and log.metadata == about
    assert log.results.scores[0].metrics["accuracy"].value == 1 and len(sent) == 6
    assert [sample.store["attempts"] for sample in log.samples] == [3] * 2
    for messages, _ in sent:
        assert [message.role for message in messages] == ["user"]
    asked = Counter(messages[0].text for messages, _ in sent)
    assert asked == {sample.input: 3 for sample in task.dataset}
    assert [message.role for message in log.samples[0].messages] == ["user", "assistant"]
    _, sent = ask(retrieval("functions", questions=1, attempts=5), never, tmp_path)
    assert len(sent) == 5


def test_the_table_and_the_json_say_what_the_logs_say(run_command_in_process, logs, tmp_path):
    """Recomputed from what the models say, without a score or metric of ours."""
    file = tmp_path / "rows.json"
    done = run_command_in_process("llm", "plot", logs, "--json", file)
    assert (done.returncode, done.stderr) == (0, "")
    made = json.loads(file.read_text())
    assert made["command"] == f"retrieval-interp llm plot '{logs}' --json {file}"
    assert len(made["rows"]) == len(LOGS)
    for row, line in zip(made["rows"], done.stdout.splitlines()[2:]):
        say = MODELS[row["model"].removeprefix("mockllm/")]
        asked = six_questions(row["formulation"], row["steps"]).dataset
        right = [say(sample, 3) == sample.target for sample in asked]
        n, share = len(right), sum(right) / len(right)
        error = math.sqrt(share * (1 - share) / (n - 1))
        chance = 1 / 16 if row["formulation"] == "relatives" else 1 / 4
        assert (row["questions"], row["chance"]) == (n, chance)
        assert (row["accuracy"], row["stderr"]) == pytest.approx((share, error))
        shown = f"{row['steps'] or '-'} {n} {share:.3f} +- {error:.3f} {chance:.3f}"
        assert line.split()[2:] == shown.split()


def test_the_figure_shows_every_row_with_its_chance(logs):
    rows = read_results([logs])
    traces = accuracy_figure(rows).data
    shown = {(trace.name, x): y for trace in traces for x, y in zip(trace.x, trace.y)}
    for row in rows:
        assert shown[row.model, row.label] == row.accuracy
        assert shown["random guessing", row.label] == row.chance


def changed(logs, folder, **changes):
    from inspect_ai.log import read_eval_log, write_eval_log

    log = read_eval_log(str(next(logs.glob("*kingdoms*"))))
    vars(log).update(changes)
    write_eval_log(log, folder / "changed.json")
    return [folder / "changed.json"]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda logs, folder: [folder / "no-log.json"], "expected an Inspect log"),
        (lambda logs, folder: changed(logs, folder, status="error"), "with the status 'error'"),
        (lambda logs, folder: [folder / "empty"], "expected logs of inspect eval, found none"),
        (lambda logs, folder: [folder / "missing.eval"], "missing.eval: expected a log"),
        (lambda logs, folder: [*changed(logs, folder), logs], "expected one log per model"),
    ],
)
def test_what_is_no_log_of_ours_is_refused_in_a_line(
    run_command_in_process, logs, tmp_path, make, text
):
    (tmp_path / "no-log.json").write_text('{"a": 1}')
    (tmp_path / "empty").mkdir()
    args = (*make(logs, tmp_path), "--out", tmp_path / "figure.html")
    done = run_command_in_process("llm", "plot", *args)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert text in done.stderr and not (tmp_path / "figure.html").exists()


def test_parameters_out_of_range_are_refused_as_inspect_shows_in_a_line():
    from inspect_ai._util.error import PrerequisiteError

    with pytest.raises(PrerequisiteError, match="at most 12, found 13"):
        retrieval("relatives", chains=13)


def test_without_inspect_the_command_says_what_to_install(
    monkeypatch, run_command_in_process, logs
):
    monkeypatch.setitem(sys.modules, "inspect_ai.log", None)
    done = run_command_in_process("llm", "plot", logs)
    assert done.returncode == 2 and "pip install 'retrieval-interp[llm]'" in done.stderr
