"""What a hooked model can do, found once per model, and running it from any layer."""

import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from retrieval_interp.circuits.attention import allowed_positions, softmax_attention
from retrieval_interp.circuits.circuit import Circuit
from retrieval_interp.circuits.mechanisms import Mechanism, Where
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


def value_hooks(
    layer: int,
    mechanisms: Mapping[int, Mechanism],
    pattern_of: Callable[[Mechanism], Tensor],
    batch: Batch,
    causal: bool,
) -> list[tuple[str, Callable[..., Any]]]:
    """Hooks that replace a layer's attention through its values, by head; to be set together."""
    real, n_positions = batch.attention_mask, batch.inputs.shape[1]
    allowed = allowed_positions(n_positions, causal, batch.inputs.device, real)
    if real is not None:
        allowed = allowed | ~real[:, :, None]  # rows of padding, which nothing attends to
    seen: dict[str, Float[Tensor, "batch pos head d_head"]] = {}
    own: dict[int, Tensor] = {}
    used: dict[int, Tensor] = {}

    def keep(name: str) -> Callable[[Tensor, Any], None]:
        def hold(activation: Tensor, hook: Any) -> None:
            seen[name] = activation

        return hold

    def replace(z: Float[Tensor, "batch pos head d_head"], hook: Any) -> Tensor:
        if len(z) != len(batch):
            raise InputError(
                f"ablation: the circuit was applied for a batch of {len(batch)} examples, but the "
                f"model ran on {len(z)}; run the same batch"
            )
        z = z.clone()
        group = z.shape[2] // seen["v"].shape[2]  # query heads may share a key-value head
        for head, mechanism in mechanisms.items():
            if mechanism.keeps_own:
                queries, keys = seen["q"][:, :, head], seen["k"][:, :, head // group]
                own[head] = softmax_attention(queries, keys, allowed, queries.shape[-1] ** 0.5)
                other = batch.counterfactual_of(layer, head)
                used[head] = mechanism.changed(own[head], batch.roles, other)
            else:
                used[head] = pattern_of(mechanism).to(z).expand(len(z), -1, -1)
            z[:, :, head] = used[head] @ seen["v"][:, :, head // group]
        return z

    def show(pattern: Float[Tensor, "batch head dest src"], hook: Any) -> Tensor:
        """Show the pattern that was actually used to other hooks."""
        for head, mine in own.items():
            apart = (mine - pattern[:, head]).abs().amax(-1)
            if bool((apart if real is None else apart * real).max() > 1e-4):
                raise InputError(
                    f"ablation: expected L{layer}.H{head} to attend by its queries and keys alone, "
                    "found another pattern; paths of this model cannot be cut, only replaced"
                )
        pattern = pattern.clone()
        for head, replaced in used.items():
            pattern[:, head] = replaced
        return pattern

    place = f"blocks.{layer}.attn.hook_"
    some_cut = any(mechanism.keeps_own for mechanism in mechanisms.values())
    hooks = [(f"{place}{name}", keep(name)) for name in ("vqk" if some_cut else "v")]
    return [*hooks, (f"{place}z", replace), (f"{place}pattern", show)]


PatternHook = Callable[..., Tensor | None]
_KEPT = 64_000_000  # weights of patterns that are kept


class Patterns:
    """The patterns of mechanisms on a batch, kept, as many circuits have most in common."""

    def __init__(self, batch: Batch, causal: bool):
        self.where = Where.of(batch, causal)
        self._kept: dict[Mechanism, Tensor] = {}
        self._numbers = 0

    def __call__(self, mechanism: Mechanism) -> Float[Tensor, "#batch dest src"]:
        pattern = self._kept.pop(mechanism, None)
        if pattern is None:
            pattern = mechanism.pattern(self.where)
            self._numbers += pattern.numel()
        self._kept[mechanism] = pattern
        while self._numbers > _KEPT and len(self._kept) > 1:  # those used longest ago go first
            self._numbers -= self._kept.pop(next(iter(self._kept))).numel()
        return pattern


def _circuit_hooks(
    model: Any, circuit: Circuit, batch: Batch, first_layer: int, pattern_of: Patterns
) -> list[tuple[str, PatternHook]]:
    layers: dict[int, dict[int, Mechanism]] = {}
    for head, mechanism in circuit.mechanisms.items():
        if head.layer >= first_layer:
            layers.setdefault(head.layer, {})[head.head] = mechanism
            pattern_of.where.check(mechanism.paths, names=circuit.role_names)
    if not layers:
        return []
    if not Hooked(model).pattern_is_used(batch):
        return [
            hook
            for layer, heads in layers.items()
            for hook in value_hooks(layer, heads, pattern_of, batch, is_causal(model))
        ]
    replace = partial(_replace_heads, pattern_of=pattern_of, batch=batch)
    return [
        (pattern_hook_name(layer), partial(replace, mechanisms=heads))
        for layer, heads in layers.items()
    ]


def _replace_heads(
    pattern: Float[Tensor, "batch head dest src"],
    hook: Any,
    mechanisms: dict[int, Mechanism],
    pattern_of: Patterns,
    batch: Batch,
) -> Float[Tensor, "batch head dest src"]:
    examples, length = batch.inputs.shape[:2]
    if (examples, length) != (len(pattern), pattern.shape[-1]):
        raise InputError(
            f"ablation: the circuit was applied for a batch of {examples} examples and {length} "
            f"positions, but the model ran on {len(pattern)} and {pattern.shape[-1]}; run the same "
            "batch"
        )
    replaced = pattern.clone()
    for head, mechanism in mechanisms.items():
        if mechanism.keeps_own:
            other = batch.counterfactual_of(hook.layer(), head)
            replaced[:, head] = mechanism.changed(pattern[:, head], batch.roles, other)
        else:
            replaced[:, head] = pattern_of(mechanism).to(pattern)
    return replaced


@contextmanager
def ablated(
    model: Any,
    circuit: Circuit,
    batch: Batch,
    first_layer: int = 0,
    known: Patterns | None = None,
) -> Iterator[Any]:
    """Run a model with a circuit in place of its attention.

    The pattern of every head that the circuit names is replaced after the softmax, so the head
    writes pattern(mechanism) · values. In a `cut` head the attention of its paths is set to zero
    and the rest kept, without rescaling.

    Blocks nest: an inner one acts after an outer one on the same head. Leaving a block, normally or
    by an exception, removes only the hooks that it set.

    Args:
        model: a hooked model (`HookedTransformer` or similar), unchanged afterwards.
        circuit: mechanisms for some or all of its heads.
        batch: the batch that will be run; its roles place the paths.
        first_layer: apply the circuit from this layer on, for runs with `start_at_layer`.
        known: patterns of this batch, kept from other circuits.

    Examples:
        >>> import retrieval_interp as ri
        >>> small = ri.load_checkpoint("small")
        >>> batch = small.task.sample(64, split="test")
        >>> circuit = ri.parse_circuit(["L2.H0 one-hot s0<-s2 s4<-s6", "L3.H0 uniform"], small.task)
        >>> with ri.ablated(small.model, circuit, batch):
        ...     outputs = small.model(batch.inputs)
        >>> round(small.task.loss(outputs, batch).item(), 3)
        0.034
    """
    circuit.check_fits(model.cfg.n_layers, model.cfg.n_heads)
    pattern_of = known or Patterns(batch, is_causal(model))
    hooks = _circuit_hooks(model, circuit, batch, first_layer, pattern_of)
    fired: set[str] = set()

    def noting(name: str, function: PatternHook) -> PatternHook:
        def replace(activation: Tensor, hook: Any) -> Tensor | None:
            fired.add(name)
            return function(activation, hook=hook)

        return replace

    with model.hooks(fwd_hooks=[(name, noting(name, function)) for name, function in hooks]):
        yield model
    for name, _ in hooks:
        if name not in fired:
            raise InputError(
                f"ablation: expected every hook to fire, but {name} did not; the model was not "
                "run, or does not pass its attention through that hook"
            )
