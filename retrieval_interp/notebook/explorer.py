"""The explorer: a widget in which circuits are built by clicking.

The page (`explorer.js`) only displays and asks; the circuit and its numbers belong to the
workbench. Needs the `notebook` extra (anywidget).
"""

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anywidget
import torch
import traitlets

from circuits import Circuit, Head, Mechanism, ablated
from circuits.circuit import IDENTITY, ORIGINAL, UNIFORM, tidy
from circuits.discovery.candidates import propose, role_mean
from circuits.hooks.points import call_options, pattern_hook_name
from circuits.notation import parse_head_path
from circuits.scores.scorer import no_progress
from retrieval_interp.views.attention import position_labels
from tasks import InputError

if TYPE_CHECKING:
    from retrieval_interp import Workbench

_STRONG = 0.4  # attention of a proposed path
_HERE = Path(__file__).parent


class Explorer(anywidget.AnyWidget):
    """The widget of one workbench.

    The page knows three dictionaries: `model_info` never changes, `state` is the circuit so far and
    its loss, `shown` the selected head. It asks by messages such as
    `{"do": "toggle", "path": "L2.H0 s0<-s2"}`.
    """

    _esm = (_HERE / "explorer.js").read_text(encoding="utf-8")
    _css = (_HERE / "explorer.css").read_text(encoding="utf-8")
    model_info = traitlets.Dict().tag(sync=True)
    state = traitlets.Dict().tag(sync=True)
    shown = traitlets.Dict().tag(sync=True)

    def __init__(self, bench: "Workbench"):
        self.bench = bench
        self.head, self.example, self.with_circuit = bench.heads[0], 0, False
        self._answering = False
        super().__init__(model_info=self._model_info(), state=self._state(), shown=self._shown())
        self.on_msg(self._answer)
        bench.watchers.add(self)

    @property
    def circuit(self) -> Circuit:
        """The workbench's circuit."""
        return self.bench.circuit

    def __repr__(self) -> str:
        return f"explorer of {self.bench!r}"

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        """The widget, or a static view for frontends without widgets."""
        bundle = super()._repr_mimebundle_(**kwargs)
        data = bundle[0] if isinstance(bundle, tuple) else bundle
        if data is not None:
            data["text/plain"] = repr(self)
            data["text/html"] = self.bench._repr_html_()
        return bundle

    def _model_info(self) -> dict[str, Any]:
        bench = self.bench
        cfg, task = bench.model.cfg, bench.task
        return {
            "name": bench.name,
            "layers": cfg.n_layers,
            "heads": cfg.n_heads,
            "roles": list(task.role_names),
            "labels": list(task.role_labels),
            "symbols": list(task.role_symbols),
            "order": bench.order,
            "examples": len(bench.batch),
            "loss_name": task.loss_name,
            "tolerance": bench.tolerance,
        }

    def _state(self, said: str = "", failed: bool = False, busy: str = "") -> dict[str, Any]:
        bench = self.bench
        heads = {}
        for head in bench.heads:
            kind, paths = self.circuit[head].kind, self.circuit[head].paths
            shown = paths if kind in ("one-hot", "shared") else ()
            heads[str(head)] = {"kind": kind, "paths": [list(path) for path in shown]}
        return {
            "loss": _finite(bench.loss),
            "intact": _finite(bench.intact_loss),
            "replaced": len(self.circuit.mechanisms),
            "heads": heads,
            "drawing": bench.drawing(),
            "undoable": bench.undoable,
            "said": said,
            "failed": failed,
            "busy": busy,
        }

    @torch.no_grad()
    def _shown(self) -> dict[str, Any]:
        bench, (layer, head) = self.bench, self.head
        one = bench.batch[self.example : self.example + 1]
        circuit = self.circuit if self.with_circuit else bench.scorer.empty_circuit
        name = pattern_hook_name(layer)
        with ablated(bench.model, circuit, one):
            _, cache = bench.model.run_with_cache(
                one.inputs, names_filter=name, **call_options(one)
            )
        by_role = bench.mean_attention(self.with_circuit)
        return {
            "layer": layer,
            "head": head,
            "example": self.example,
            "with_circuit": self.with_circuit,
            "tokens": position_labels(bench.model, bench.task, one, 0),
            "chains": one.roles[0].tolist(),
            "pattern": cache[name][0, head].float().cpu().mul(1000).round().int().tolist(),
            "by_role": by_role.mul(1000).round().int().tolist(),
            "choices": self._choices(),
        }

    def _choices(self) -> list[dict[str, Any]]:
        """Plausible mechanisms for the selected head, each with the loss it would give."""
        attention, names = self.bench.intact_attention[self.head], self.circuit.role_names
        found: dict[Mechanism, str] = {
            ORIGINAL: "original",
            UNIFORM: "uniform",
            IDENTITY: "identity",
            propose(attention, "one-hot", _STRONG): "one-hot",
            tidy(propose(attention, "shared", _STRONG / 2)): "shared",
            role_mean(attention): "role-mean",
        }
        return [
            {
                "name": name,
                "line": f"{self.head} {name if name == 'role-mean' else mechanism.text(names)}",
                "chosen": self.circuit[self.head] == mechanism,
                "paths": " ".join(path.text(names) for path in mechanism.paths)
                if name != "role-mean"
                else "",
                "loss": _finite(self.bench.loss_with(self.circuit.replace(self.head, mechanism))),
            }
            for mechanism, name in found.items()
        ]

    def _answer(self, _: Any, asked: dict[str, Any], buffers: Any = None) -> None:
        start, said, failed = time.perf_counter(), "", False
        self._answering = True
        try:
            said = self._do(asked)
        except Exception as error:  # a message has no cell to show a traceback in
            known = isinstance(error, InputError)
            said, failed = f"{'' if known else f'{type(error).__name__}: '}{error}", True
        finally:
            self._answering = False
            if not said and asked.get("do") != "show":
                seconds = time.perf_counter() - start
                said = f"{1000 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
            # The loss first: the choices below take longer to measure.
            self.state = self._state(said, failed)
        if asked.get("do") != "save" and not failed:
            self.shown = self._shown()

    def _do(self, asked: dict[str, Any]) -> str:
        bench, what = self.bench, asked.get("do")
        if what == "show":
            head, example = Head(asked["layer"], asked["head"]), asked["example"]
            bench.check_head(head)
            if type(example) is not int or not 0 <= example < len(bench.batch):
                raise InputError(
                    f"example: expected 0 to {len(bench.batch) - 1}, found {example!r:.40}"
                )
            self.head, self.example = head, example
            self.with_circuit = bool(asked["with_circuit"])
        elif what == "suppose":
            bench.suppose(str(asked["line"]))
        elif what == "toggle":
            path = str(asked["path"])
            present = parse_head_path(path, bench.task) in self.circuit.paths()
            (bench.remove if present else bench.suppose)(path)
        elif what == "undo":
            bench.undo()
        elif what == "clear":
            bench.suppose(bench.scorer.empty_circuit)
        elif what == "discover":
            self.state = self._state(busy="searching")
            bench.discover(no_progress)
        elif what == "save":
            return f"saved to {bench.save(str(asked['path']))}"
        else:
            raise InputError(f"explorer: expected a known request, found {what!r:.40}")
        return ""

    def refresh(self) -> None:
        """Show what the workbench's own methods changed; the workbench calls this."""
        if not self._answering:
            self.state, self.shown = self._state(), self._shown()


def _finite(loss: float) -> float | None:
    """JSON has no infinity."""
    return loss if math.isfinite(loss) else None
