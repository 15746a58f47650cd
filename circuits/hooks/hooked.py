"""What a hooked model can do, found once per model, and running it from any layer."""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from retrieval_interp.tasks import Batch, InputError

# Per model what was found by running it: `pattern_is_used`, and what its blocks return.
_FOUND: "weakref.WeakKeyDictionary[Any, dict[str, Any]]" = weakref.WeakKeyDictionary()


def pattern_hook_name(layer: int) -> str:
    """TransformerLens's hook name of a layer's attention pattern, [batch head dest src]."""
    return f"blocks.{layer}.attn.hook_pattern"


def is_causal(model: Any) -> bool:
    """Whether positions attend only to themselves and earlier ones."""
    return bool(getattr(model.cfg, "attention_dir", "causal") == "causal")


def is_hooked_transformer(model: Any) -> bool:
    """Whether a model is a `HookedTransformer`, by class name, since TransformerLens 4 has none."""
    names = {(kind.__module__.split(".")[0], kind.__name__) for kind in type(model).__mro__}
    return ("transformer_lens", "HookedTransformer") in names


def call_options(batch: Batch) -> dict[str, Tensor]:
    """What a model is called with besides the inputs: where they are padding, if anywhere."""
    mask = batch.attention_mask
    return {} if mask is None else {"attention_mask": mask.long()}


def has_hooks(model: Any, named: str = "") -> bool:
    """Whether somebody has set a hook on the model, at points with `named` in their names."""
    points = model.hook_dict.items()
    return any(point.has_hooks() for name, point in points if named in name)


class Hooked:
    """A hooked model, a `HookedTransformer` or a `TransformerBridge`, and what it can do."""

    def __init__(self, model: Any):
        self.model = model
        self.is_transformer = is_hooked_transformer(model)
        self._found = _FOUND.setdefault(model, {})

    @torch.no_grad()
    def pattern_is_used(self, batch: Batch) -> bool:
        """Whether the model uses the pattern that a hook at `hook_pattern` returns.

        A `TransformerBridge` may only show it. Then zeroing a layer's attention leaves its heads'
        results as they are.
        """
        if not self.is_transformer and "pattern" not in self._found:
            results: list[Tensor] = []
            hooks = [
                (pattern_hook_name(0), lambda pattern, hook: torch.zeros_like(pattern)),
                ("blocks.0.attn.hook_z", lambda z, hook: results.append(z)),
            ]
            with self.model.hooks(fwd_hooks=hooks):
                self.run(batch[:1])
            if not results:
                raise InputError(
                    "ablation: expected blocks.0.attn.hook_z to fire, but it did not; the model "
                    "does not pass its attention through TransformerLens's hooks"
                )
            self._found["pattern"] = not bool(results[0].any())
        return self.is_transformer or bool(self._found["pattern"])

    @torch.no_grad()
    def starts_anywhere(self, batch: Batch) -> bool:
        """Whether it can be run from any layer, given the residual stream before it.

        Not where a user's hook before a layer would act twice on that stream. A bridge is tried, on
        two examples: its outputs have to be those of a whole run.
        """
        if has_hooks(self.model, "resid_pre"):
            return False
        if self.is_transformer:
            return bool(self.model.cfg.positional_embedding_type != "shortformer")
        if "starts" not in self._found:
            self._found["starts"] = self._skips_exactly(batch[:2])
        return bool(self._found["starts"])

    def run(
        self, batch: Batch, layer: int = 0, residual: Float[Tensor, "batch pos d"] | None = None
    ) -> Float[Tensor, "batch answer d_out"]:
        """The outputs; with a residual stream, of a run from this layer on."""
        outputs: Tensor
        if residual is None:
            outputs = self.model(batch.inputs, **call_options(batch))
        elif self.is_transformer:
            outputs = self.model(residual, start_at_layer=layer, **call_options(batch))
        else:
            with self._blocks_skipped(layer, residual):
                outputs = self.model(batch.inputs, **call_options(batch))
        return outputs

    @contextmanager
    def _blocks_skipped(self, layer: int, residual: Tensor) -> Iterator[None]:
        """A bridge runs all its blocks, so those before a layer have to pass their input on."""
        returned = self._found.get("returned", 0)  # how many things; 0 for the stream alone

        def pass_on(hidden: Any, *args: Any, **options: Any) -> Any:
            return (hidden, *[None] * (returned - 1)) if returned else hidden

        skipped = self.model.blocks[:layer]
        start = (f"blocks.{layer}.hook_resid_pre", lambda stream, hook: residual)
        try:
            for block in skipped:
                vars(block)["forward"] = pass_on  # found before the method of its class
            with self.model.hooks(fwd_hooks=[start]):
                yield
        finally:
            for block in skipped:
                vars(block).pop("forward", None)

    def _skips_exactly(self, batch: Batch) -> bool:
        layers = sorted({self.model.cfg.n_layers // 2, self.model.cfg.n_layers - 1})
        names = [f"blocks.{layer}.hook_resid_pre" for layer in layers]
        if any(name not in self.model.hook_dict for name in names):
            return False
        residuals: list[Tensor] = []
        kept = [(name, lambda residual, hook: residuals.append(residual)) for name in names]

        def note(block: Any, inputs: Any, output: Any) -> None:
            self._found["returned"] = len(output) if isinstance(output, tuple) else 0

        handle = self.model.blocks[0].register_forward_hook(note)
        try:
            with self.model.hooks(fwd_hooks=kept):
                whole = self.run(batch)
        finally:
            handle.remove()
        if len(residuals) != len(layers) or "returned" not in self._found:
            return False
        try:
            return all(
                torch.allclose(self.run(batch, layer, residual), whole, atol=1e-5, rtol=1e-5)
                for layer, residual in zip(layers, residuals)
            )
        except (TypeError, ValueError, AttributeError, IndexError, KeyError, RuntimeError):
            return False  # its loop over blocks needs more of them
