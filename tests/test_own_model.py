"""Tasks and models that are not this project's: tokens, HookedTransformer, TransformerBridge."""

import os
import re
import subprocess
import sys
from html import unescape

import pytest
import torch

import retrieval_interp as ri
from retrieval_interp.circuits import Scorer
from retrieval_interp.circuits.hooks import probed
from tests.models import Lookup, bridge_of, hooked_model, untrained_bridge
from tests.naive import naive_losses
from tests.texts import SENTENCE

TASK = Lookup()


@pytest.fixture(scope="module")
def bridge(hooked):
    return bridge_of(hooked)


def test_what_a_bridge_shows_is_what_was_used(hooked, bridge):
    """It shows its pattern and does not use what a hook returns."""
    batch = TASK.sample(6, split="test")
    assert probed(hooked, batch).pattern_is_used and not probed(bridge, batch).pattern_is_used
    bench = ri.open(bridge, TASK, examples=8)
    bench.suppose("L0.H0 uniform", "L1.H0 cut s0<-s2")
    pattern = bench.attention(0, 0, with_circuit=True).data[0, 0]
    allowed = torch.ones(13, 13).tril()
    torch.testing.assert_close(pattern, allowed / allowed.sum(-1, keepdim=True))
    assert float(bench.roles(with_circuit=True).data[1, 0][0, 2]) == 0.0


@pytest.mark.parametrize(("direction", "hides"), [("causal", "true"), ("bidirectional", "false")])
def test_a_page_of_attention_hides_what_a_causal_model_does_not_see(direction, hides):
    model = hooked_model(attention_dir=direction)
    view = ri.attention_view(model, TASK, TASK.sample(2))
    assert f'"maskUpperTri":{hides}' in view.html


@torch.no_grad()
def test_no_layer_is_left_out_where_that_would_change_the_numbers(hooked):
    """A hook of the user's in front of a layer, and positions that every layer adds anew."""
    batch = TASK.sample(6)
    circuit = ri.parse_circuit(["L1.H0 uniform"], TASK)
    hook = ("blocks.1.hook_resid_pre", lambda stream, hook: stream + 1.0)
    with hooked.hooks(fwd_hooks=[hook]):
        expected = naive_losses(hooked, TASK, circuit, batch)
        losses = Scorer(hooked, TASK, batch).losses(circuit).mean(1)
        torch.testing.assert_close(losses, expected, atol=1e-5, rtol=0)
    model = hooked_model(positional_embedding_type="shortformer", seed=1)
    expected = naive_losses(model, TASK, circuit, batch)
    torch.testing.assert_close(Scorer(model, TASK, batch).losses(circuit).mean(1), expected)


class Named(Lookup):
    role_names = ("again", "first", "next")


@pytest.fixture
def named(hooked):
    return ri.open(hooked, Named(), examples=4)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("L1.H0 one-hot again<-first again<-next", "found again<-first and again<-next; use"),
        ("L1.H0 uniform again<-next", "expected no paths, found again<-next"),
        ("L1.H0 again<-nxt", "expected the role next, found 'nxt'"),
        ("L1.H0 AGAIN<-next", "expected the role again, found 'AGAIN'"),
        ("L1.H0 door<-next", r"s0 to s2 \(again, first, next\), found 'door'"),
        ("L1.H0 first<-next", "found first<-next: next comes later"),
    ],
)
def test_errors_have_the_tasks_names_of_roles(named, line, said):
    with pytest.raises(ri.InputError, match=said):
        named.suppose(line)


def test_circuits_and_scores_have_the_tasks_names_of_roles(named, tmp_path):
    named.suppose("L1.H0 again <- next\nL0.H1 one-hot", "L0.H1 s2<-s1")
    saved, circuit = named.save(tmp_path / "circuit.json"), named.circuit
    assert ri.parse_circuit(repr(circuit), Named()) == circuit
    assert named.undo() and named.load(saved) and named.circuit == circuit
    assert '["again", "next"]' in saved.read_text()
    score, cuts = named.score(controls=0).data, named.ablations().data.by_rise
    shown = repr((score.paths, score.heads, circuit.mechanisms, cuts))
    assert "again<-next" in shown and "next<-first" in shown and not re.search(r"s\d<-", shown)


def test_the_record_of_a_report_makes_it_again(named, tmp_path):
    """Apart from the date."""
    named.suppose("L1.H0 again<-next", "L0.H1 one-hot", "L0.H0 ~next<-first")
    first = named.report(tmp_path / "report.html").read_text()
    (call,) = re.findall(r"bench = ri\.open.*(?=bench\.report)", page_text(first))
    names = {"ri": ri, "model": named.model, "task": Named()}
    exec(call, names)
    again = names["bench"].report(tmp_path / "report.html").read_text()
    pages = [re.sub(r"[0-9T:-]{9,}|attention-\w+", "", page_text(page)) for page in (first, again)]
    assert pages[0] == pages[1]


def page_text(html):
    return unescape(re.sub("<.*?>", "", html))


def test_a_task_may_draw_without_defaults(hooked, tmp_path):
    class NoDefaults(Lookup):
        def sample(self, n, seed, device, split):
            return super().sample(n, seed, device, split)

    bench = ri.open(hooked, NoDefaults(), examples=8)
    bench.suppose("L1.H0 one-hot s0<-s2")
    circuit, saved = bench.circuit, bench.save(tmp_path / "c.json")
    assert bench.load(saved) and bench.circuit == circuit
    assert "L1.H0" in ri.draw_circuit(bench.circuit, task=NoDefaults())


@pytest.mark.slow
def test_a_model_of_the_hub_is_opened_by_name_from_the_local_cache(tmp_path):
    cache = tmp_path / "hub" / "models--tiny--llama"
    untrained_bridge("llama", cache / "snapshots" / "abc")
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text("abc")
    (tmp_path / "t.txt").write_text(f"{SENTENCE} Mary. " * 4)
    offline = {**os.environ, "HF_HUB_CACHE": str(cache.parent), "HF_HUB_OFFLINE": "1"}
    for name, status, said in (
        ("hf:tiny/llama", 0, "hf:tiny/llama: the next token of"),
        ("hf:tiny/none", 2, "scan: hf:tiny/none: expected a causal language model"),
    ):
        words = f"-m retrieval_interp scan --model {name} --text t.txt --time 5".split()
        command = [sys.executable, *words]
        done = subprocess.run(command, cwd=tmp_path, env=offline, capture_output=True, text=True)
        assert (done.returncode, said in done.stdout + done.stderr) == (status, True), done.stderr
