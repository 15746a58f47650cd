"""The benchmark of language models, offline: mock models of known answers, a tiny local one."""

import gc
import json
import math
import random
import re
import runpy
import subprocess
import sys
import warnings
from collections import Counter
from pathlib import Path

import plotly.io as pio
import pytest

pytest.importorskip("inspect_ai", reason="needs the extra [llm]")

from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.log import read_eval_log, write_eval_log
from inspect_ai.model import ModelOutput, ModelUsage, get_model

from retrieval_interp.commands import llm as command
from retrieval_interp.commands.command import run_command
from retrieval_interp.llm import benchmark
from retrieval_interp.llm.plot import accuracy_figure
from retrieval_interp.llm.results import read_results
from retrieval_interp.llm.scorer import read_answer
from retrieval_interp.tasks import InputError

pytestmark = [
    # Inspect calls tenacity as an earlier version of it wanted, and leaves streams open.
    pytest.mark.filterwarnings("ignore:The 'initial' parameter is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Unclosed <MemoryObject:ResourceWarning"),
]
ROOT = Path(__file__).parent.parent
CITIES = ("Amsterdam", "Berlin")


def ask(task, say, folder, name="mock", **options):
    """The log of a task asked of a model that says `say(sample, attempt)`, and what it was sent."""
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


def metrics(log):
    return {name: metric.value for name, metric in log.results.scores[0].metrics.items()}


def attempts(log):
    return [sample.scores["exact_answer"].metadata["attempts"] for sample in log.samples]


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    """A folder with the logs of models that are right, blind, babbling and mute."""
    folder = tmp_path_factory.mktemp("some logs")
    ask(benchmark.equations(steps=[1, 2, 5], questions=20), right, folder, "right")
    ask(benchmark.equations(steps=[1, 2, 5], questions=20), blind, folder, "blind")
    ask(benchmark.relatives(questions=20), blind, folder, "blind")
    ask(benchmark.kingdoms(questions=6), every_third, folder, "babbling")
    ask(benchmark.functions(questions=6, attempts=4), never, folder, "mute")
    return folder


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Berlin", "Berlin"),
        (" berlin.\n", "Berlin"),
        ('"BERLIN."', "Berlin"),
        ("'Berlin' .", "Berlin"),
        ("“ Berlin ”", "Berlin"),
        ("Berlin, Germany", None),
        ("The answer is Berlin", None),
        ("**Berlin**", None),
        ("Berlin..", None),
        ('"Berlin', None),
        ("Paris", None),
        ('"', None),
        ("", None),
    ],
)
def test_an_answer_is_read_without_blanks_stop_quotes_and_capitals_alone(text, answer):
    assert read_answer(text, CITIES) == answer


def test_numbers_are_read_as_they_are_written():
    read = [read_answer(text, ("0", "1", "2")) for text in ("1.", " 2", "1.0", "01", "s = 1", "-1")]
    assert read == ["1", "2", None, None, None, None]


def test_a_model_that_is_right_is_asked_once(tmp_path):
    task = benchmark.lives_with(questions=5)
    log, sent = ask(task, right, tmp_path)
    assert log.status == "success" and log.metadata == {"formulation": "lives-with", "chance": 0.25}
    assert metrics(log)["accuracy"] == 1 and attempts(log) == [1] * 5 and len(sent) == 5
    assert {config.temperature for _, config in sent} == {1.0}
    assert ask(task, right, tmp_path, temperature=0.3)[1][0][1].temperature == 0.3


@pytest.mark.slow
def test_a_model_that_guesses_is_right_as_often_as_by_chance(tmp_path):
    for make, chance in ((benchmark.equations, 1 / 4), (benchmark.relatives, 1 / 16)):
        log, _ = ask(make(questions=200), blind, tmp_path, log_realtime=False)
        error = math.sqrt(chance * (1 - chance) / 200)
        assert log.metadata["chance"] == chance
        assert abs(metrics(log)["accuracy"] - chance) < 4 * error
        assert attempts(log) == [1] * 200


def test_a_model_is_asked_afresh_until_an_acceptable_answer_comes(tmp_path, monkeypatch):
    monkeypatch.setenv("INSPECT_CACHE_DIR", str(tmp_path / "cache"))
    task = benchmark.functions(questions=4)
    log, sent = ask(task, every_third, tmp_path, cache=True, seed=7)
    assert attempts(log) == [3] * 4 and metrics(log)["accuracy"] == 1 and len(sent) == 12
    for messages, _ in sent:
        assert [message.role for message in messages] == ["user"]
    assert Counter(messages[0].text for messages, _ in sent) == {
        sample.input: 3 for sample in task.dataset
    }
    assert Counter(config.seed for _, config in sent) == {7: 4, 8: 4, 9: 4}
    assert [message.role for message in log.samples[0].messages] == ["user", "assistant"]


def test_a_model_that_never_answers_is_wrong_and_recorded_as_such(tmp_path):
    log, sent = ask(benchmark.functions(questions=3), never, tmp_path)
    assert metrics(log)["accuracy"] == 0 and attempts(log) == [20] * 3 and len(sent) == 60
    for sample in log.samples:
        score = sample.scores["exact_answer"]
        assert score.metadata["unanswered"] and score.answer is None
        assert score.explanation == "no acceptable answer in 20 attempts"


def test_several_numbers_of_steps_are_grouped(tmp_path):
    task = benchmark.equations(steps=["1", "3"], questions=4)  # as `-T steps=1,3` arrives
    assert Counter(sample.metadata["steps"] for sample in task.dataset) == {1: 4, 3: 4}
    log, _ = ask(
        task,
        lambda sample, attempt: sample.target if sample.metadata["steps"] == 1 else "0",
        tmp_path,
    )
    third = [sample.target == "0" for sample in task.dataset if sample.metadata["steps"] == 3]
    found = metrics(log)
    assert found["accuracy D=1"] == 1 and found["stderr D=1"] == 0
    assert found["accuracy D=3"] == sum(third) / 4
    assert found["accuracy"] == (4 + sum(third)) / 8


def test_questions_depend_on_the_seed_alone():
    first, again, other = (
        [sample.input for sample in benchmark.kingdoms(questions=3, seed=seed).dataset]
        for seed in (1, 1, 2)
    )
    assert first == again != other
    assert [sample.input for sample in benchmark.kingdoms(questions=2, seed=1).dataset] == first[:2]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: benchmark.equations(steps=0), "every number to be an integer of at least 1"),
        (lambda: benchmark.equations(steps=["1", "x"]), "of at least 1, found 'x'"),
        (lambda: benchmark.lives_with(steps=[2, 2]), r"expected different numbers, .* \[2, 2\]"),
        (lambda: benchmark.lives_with(steps=[]), "at least one, found"),
        (lambda: benchmark.kingdoms(chains=0), "kingdoms: expected chains"),
        (lambda: benchmark.relatives(chains=13), "expected at most 12 chains"),
        (lambda: benchmark.functions(questions=0), "functions: expected questions .* found 0"),
        (lambda: benchmark.functions(attempts=0), "functions: expected attempts .* found 0"),
        (lambda: benchmark.functions(seed=-1), "expected a seed from 0 to 2"),
    ],
)
def test_parameters_out_of_range_are_refused(make, text):
    with pytest.raises(InputError, match=text) as caught:
        make()
    assert caught.value.message.replace("\\", "") == str(caught.value)


def test_a_temperature_of_zero_is_refused(tmp_path):
    text = "--temperature: expected a number above 0, found 0.0"
    spec = f"{benchmark.__file__}@functions"
    with pytest.raises(InputError, match=text):
        eval(spec, model="mockllm/model", display="none", log_dir=str(tmp_path), temperature=0.0)
    log, sent = ask(benchmark.functions(questions=1), right, tmp_path, temperature=0.0)
    assert log.status == "error" and text in log.error.message and sent == []


def test_a_local_model_of_hugging_face_is_asked_offline(tmp_path, monkeypatch):
    pytest.importorskip("accelerate")
    import huggingface_hub.constants
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    # As HF_HUB_OFFLINE=1, which is read when the library is imported.
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    words = ["<unknown>", "<end>", "0", "1", "2", "3"]
    ids = {word: place for place, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="<unknown>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    folder = tmp_path / "tiny"
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unknown>", eos_token="<end>"
    ).save_pretrained(folder)
    sizes = {"vocab_size": len(words), "n_embd": 8, "n_layer": 1, "n_head": 1}
    GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=1, eos_token_id=1)).save_pretrained(folder)
    (log,) = eval(
        benchmark.equations(steps=2, questions=4),
        model="hf/tiny",
        model_args={"model_path": str(folder), "device": "cpu"},
        max_tokens=1,
        max_connections=1,  # or every batch waits two seconds for more
        display="none",
        log_dir=str(tmp_path),
    )
    assert log.status == "success" and len(log.samples) == 4
    (row,) = read_results([Path(log.location.removeprefix("file://"))])
    assert (row.model, row.questions, row.steps) == ("hf/tiny", 4, 2)
    assert 1 <= row.attempts <= 20


# The command


@pytest.fixture
def run(monkeypatch, capsys):
    """The command in this process: its status, output and errors."""

    def run(*argv):
        monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # put back afterwards
        monkeypatch.setattr(sys, "argv", ["llm", *map(str, argv)])
        status = 0
        try:
            run_command(command.main, "retrieval-interp llm")
        except SystemExit as stop:
            status = stop.code
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def counted(folder):
    """The table's numbers from what the models said, without a score or metric of ours."""
    rows = {}
    for path in folder.glob("*.eval"):
        log = read_eval_log(str(path))
        for sample in log.samples:
            key = (log.eval.model, sample.metadata["formulation"], sample.metadata.get("steps"))
            said = [event.output.completion for event in sample.events if event.event == "model"]
            rows.setdefault(key, []).append((said[-1] == sample.target, len(said), said[-1]))
    return rows


def test_the_table_and_the_json_say_what_the_logs_say(run, logs, tmp_path):
    status, out, err = run("plot", logs, "--json", tmp_path / "rows.json")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert len({len(line) for line in lines[:10]}) == 1
    rows = json.loads((tmp_path / "rows.json").read_text())
    expected = counted(logs)
    assert len(rows) == len(expected) == 9
    for row, line in zip(rows, lines[2:]):
        model, formulation, steps = key = (row["model"], row["formulation"], row["steps"])
        values, tries, _ = zip(*expected[key])
        n, share, mean = len(values), sum(values) / len(values), sum(tries) / len(tries)
        stderr = math.sqrt(share * (1 - share) / (n - 1))
        assert row["questions"] == n and row["accuracy"] == pytest.approx(share)
        assert row["stderr"] == pytest.approx(stderr) and row["attempts"] == pytest.approx(mean)
        assert row["chance"] == (1 / 16 if formulation == "relatives" else 1 / 4)
        assert row["unanswered"] == sum(said == never(None, 0) for *_, said in expected[key])
        numbers = f"{share:.3f} +- {stderr:.3f} {row['chance']:.3f} {mean:.2f} {row['unanswered']}"
        assert line.split() == f"{model} {formulation} {steps or '-'} {n} {numbers}".split()
    assert (rows[-2]["attempts"], rows[-2]["unanswered"], rows[-2]["accuracy"]) == (4, 6, 0)


def test_the_table_agrees_with_the_metrics_of_inspect(logs):
    for row in read_results([logs]):
        found = metrics(read_eval_log(row.log, header_only=True))
        name = "" if row.steps is None else f" D={row.steps}"
        assert row.accuracy == pytest.approx(found[f"accuracy{name}"])
        assert row.stderr == pytest.approx(found[f"stderr{name}"])


def test_epochs_are_tries_of_the_same_question(tmp_path):
    def alternately(sample, attempt):
        return sample.target if attempt % 2 else sample.metadata["acceptable"][0]

    log, _ = ask(benchmark.functions(questions=5), alternately, tmp_path, epochs=2)
    (row,) = read_results([tmp_path])
    assert row.questions == 5 and len(log.samples) == 10
    assert row.accuracy == pytest.approx(metrics(log)["accuracy"])
    assert row.stderr == pytest.approx(metrics(log)["stderr"])


def test_the_figure_shows_every_row_with_its_error_and_chance(logs):
    before = pio.templates.default
    rows = read_results([logs])
    figure = accuracy_figure(rows)
    assert pio.templates.default == before
    lines = {trace.name: trace for trace in figure.data if trace.type == "scatter" and trace.y}
    for model in ("mockllm/right", "mockllm/blind"):
        own = [row for row in rows if (row.model, row.formulation) == (model, "equations")]
        trace = lines[model]
        assert trace.x == (1, 2, 5) and trace.y == tuple(row.accuracy for row in own)
        assert trace.error_y.array == tuple(row.stderr for row in own)
    labels = figure.layout.xaxis2.ticktext
    assert labels == ("equations, D = 5", "kingdoms, D = 5", "functions", "relatives")
    bars = {
        (trace.name, labels[x]): y
        for trace in figure.data
        if trace.type == "bar"
        for x, y in zip(trace.x, trace.y)
    }
    assert len(bars) == 5 and bars["mockllm/babbling", "kingdoms, D = 5"] == 1
    left, right_side = (trace for trace in figure.data if trace.name == "random guessing")
    assert left.line.dash == right_side.line.dash == "dash"
    assert (left.x, left.y) == ((0.5, 5.5, None), (0.25, 0.25, None))
    assert right_side.y == (0.25, 0.25, None) * 3 + (0.0625, 0.0625, None)
    titles = [axis.title.text for axis in [*figure.select_xaxes(), *figure.select_yaxes()]]
    assert titles == ["D, equations per chain", "formulation", "accuracy", None]
    shown = [trace.name for trace in figure.data if trace.showlegend]
    assert sorted(shown) == sorted({trace.name for trace in figure.data})
    assert len(accuracy_figure([row for row in rows if row.steps is None]).data) == 3


def test_the_page_needs_no_network(run, logs, tmp_path):
    page = tmp_path / "figure.html"
    status, out, err = run("plot", *logs.glob("*relatives*"), "--out", page)
    assert (status, err) == (0, "")
    assert out.splitlines()[-1] == f"figure: {page}"
    text = page.read_text(encoding="utf-8")
    assert re.findall(r"<(?:script|link|img)[^>]*\s(?:src|href)=", text) == []


def with_status(logs, status, folder):
    log = read_eval_log(str(next(logs.glob("*kingdoms*"))))
    log.status = status
    write_eval_log(log, folder / f"{status}.eval")
    return folder / f"{status}.eval"


def without_samples(logs, status, folder):
    log = read_eval_log(str(next(logs.glob("*kingdoms*"))))
    log.samples = []
    write_eval_log(log, folder / "bare.json")
    return folder / "bare.json"


def written(name, text):
    def write(logs, status, folder):
        (folder / name).write_text(text)
        return folder / name

    return write


def of_another_task(logs, status, folder):
    task = Task(dataset=[Sample(input="Hello?", target="Hello")], name="greetings")
    log, _ = ask(task, right, folder)
    return log.location.removeprefix("file://")


@pytest.mark.parametrize(
    ("make", "status", "text"),
    [
        (written("notes.txt", "abc"), "", r"notes.txt: expected an Inspect log \(.eval or .json\)"),
        (
            written("half.eval", "PK"),
            "",
            "half.eval: expected an Inspect log .* inspect eval wrote",
        ),
        (written("other.json", '{"a": 1}'), "", "other.json: expected an Inspect log"),
        (
            of_another_task,
            "",
            "expected a log of equations, .* found one of the task greetings; le",
        ),
        (with_status, "started", "expected a finished log, found the status 'started'; finish it"),
        (with_status, "error", "error.eval: expected a finished log, found the status 'error'"),
        (without_samples, "", "expected a log with scored samples, found none; run without"),
        (
            lambda logs, status, folder: folder,
            "",
            "expected a folder with Inspect logs, found none",
        ),
        (lambda logs, status, folder: folder / "no.eval", "", "no.eval: .* of them, found nothing"),
    ],
)
def test_what_is_no_log_of_ours_is_refused_in_a_line(run, logs, tmp_path, make, status, text):
    folder = tmp_path / "given"
    folder.mkdir()
    page = tmp_path / "figure.html"
    found, out, err = run("plot", make(logs, status, folder), "--out", page)
    assert (found, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("llm: ") and re.search(text, err)
    assert not page.exists()


def test_two_logs_of_the_same_are_refused(run, logs, tmp_path):
    first = next(logs.glob("*kingdoms*"))
    (tmp_path / "again.eval").write_bytes(first.read_bytes())
    status, out, err = run("plot", first, tmp_path)
    assert (status, out) == (2, "")
    assert "expected one log per model, formulation and D, found mockllm/babbling, kingdoms" in err
    assert "leave one out" in err


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        ([], "see retrieval-interp llm --help"),
        (["draw", "logs"], "see retrieval-interp llm --help"),
        (["plot"], "expected logs of inspect eval, found none; name files or their folder"),
        (
            ["plot", ".", "--out", "missing/figure.html"],
            "expected an existing folder to write into",
        ),
    ],
)
def test_other_command_lines_are_refused(run, argv, text):
    status, out, err = run(*argv)
    assert (status, out, err.count("\n")) == (2, "", 1) and text in err


def test_without_inspect_the_command_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "inspect_ai", None)
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    monkeypatch.setattr(sys, "argv", ["retrieval_interp/__main__.py", "llm", "plot", "."])
    monkeypatch.delitem(sys.modules, "retrieval_interp.commands.llm")
    monkeypatch.delitem(sys.modules, "retrieval_interp.__main__", raising=False)
    with pytest.raises(SystemExit) as stop:
        runpy.run_module("retrieval_interp", run_name="__main__")
    assert stop.value.code == 2
    assert "pip install 'retrieval-interp[llm]'" in capsys.readouterr().err


def test_importing_the_package_does_not_load_inspect():
    code = "import retrieval_interp, retrieval_interp.llm, sys; print('inspect_ai' in sys.modules)"
    run = [sys.executable, "-c", code]
    assert subprocess.run(run, check=True, capture_output=True, text=True).stdout == "False\n"


def test_the_entry_point_names_a_module_with_the_five_tasks():
    tomllib = pytest.importorskip("tomllib")  # from Python 3.11 on, as Inspect
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["inspect_ai"] == {"retrieval_interp": benchmark.__name__}
    for name in ("equations", "lives_with", "kingdoms", "functions", "relatives"):
        assert len(getattr(benchmark, name)(questions=2).dataset) == 2
