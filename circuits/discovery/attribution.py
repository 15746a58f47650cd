"""Estimate what replacing attention does to the loss, to second order.

1. At `hook_z` a head's result is z = P v, with P its pattern and v its values. A zero tensor e is
   added there as z + e v. The gradient by e equals that by P, on any model that fires `hook_v` and
   `hook_z`, whether or not it uses the pattern that a hook returns.
2. First order: the gradient of the loss times the change of the patterns.
3. Second order: the same with gradients of random projections of the outputs.

Estimates say which hypotheses are worth scoring; `circuits.scores` scores them exactly.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from retrieval_interp.circuits import hooks
from retrieval_interp.circuits.circuit import Circuit
from retrieval_interp.circuits.fits import check_batch_fits, check_model_fits
from retrieval_interp.circuits.hooks import HookedModel
from retrieval_interp.circuits.mechanisms import Mechanism
from retrieval_interp.circuits.paths import Head, Positions
from retrieval_interp.circuits.replacement import ablated
from retrieval_interp.tasks import Batch, InputError, Task

_READ = 64  # outputs at a position that a loss may depend on, for a second-order term
_PART = 128  # examples per pass; their patterns and gradients of all layers are in memory

Patterns = Float[Tensor, "batch head dest src"]
Projections = Float[Tensor, "product batch"]  # of the loss, and of each draw of the outputs


class Estimate(NamedTuple):
    """The estimated change of the loss, `first` + |`second`|².

    For changes of several heads at once, `first` and `second` are each added up. On the CPU.
    """

    first: float
    second: Float[Tensor, " number"]

    @property
    def curvature(self) -> float:
        """The second-order part; 0 where the loss has no diagonal second derivative."""
        return float(self.second.square().sum())

    @property
    def effect(self) -> float:
        """Both parts together."""
        return self.first + self.curvature


class Attribution:
    """Estimates from the gradients on one set of examples."""

    def __init__(self, parts: "Sequence[PatternGradients]"):
        self.parts = parts
        self._estimates: dict[tuple[Head, Mechanism], Estimate] = {}

    def change(self, head: Head, mechanism: Mechanism) -> Estimate:
        """Estimate the change of the loss if one head has another mechanism."""
        key = head, mechanism
        if key not in self._estimates:
            products = torch.cat([part.change(head, mechanism).cpu() for part in self.parts], dim=1)
            scale = (2 * max(1, products[1:].numel())) ** -0.5
            first, second = float(products[0].mean()), scale * products[1:].flatten()
            self._estimates[key] = Estimate(first, second)
        return self._estimates[key]

    def estimate(self, circuit: Circuit) -> Estimate:
        """Estimate the change of the loss if `circuit` replaces the one in place."""
        before, used = self.parts[0].circuit, self.parts[0].used
        circuit.check_fits(len(used), used[0].shape[1])
        heads = sorted(circuit.mechanisms.keys() | before.mechanisms.keys())
        estimates = [self.change(h, circuit[h]) for h in heads if circuit[h] != before[h]]
        if not estimates:
            return Estimate(0.0, torch.zeros(1))
        firsts, seconds = zip(*estimates)
        return Estimate(sum(firsts), torch.stack(seconds).sum(0))

    def effects(self, circuits: Sequence[Circuit]) -> list[float]:
        """Estimate the change of the loss for each of many circuits."""
        return [self.estimate(circuit).effect for circuit in circuits]


def attribute(
    model: HookedModel, task: Task, batch: Batch, circuit: Circuit | None = None, draws: int = 1
) -> Attribution:
    """Estimate what any change of attention does to the loss, from one pass.

    `attribute(...).estimate(other)` is the change if the circuit `other` replaces the one in place.
    Let P be the patterns of all heads with the circuit in place, y(P) the outputs, l(y) an
    example's loss, and dP the change of the patterns (a cut, a replaced head, a path removed or
    added; also in several heads at once). With J the Jacobian of y by P and H the second derivative
    of l by y,

        l(y(P + dP)) - l(y(P))  ≈  ⟨∂l/∂P, dP⟩ + ½ (J dP)ᵀ H (J dP)              (Gauss-Newton)

    Where H has a block for each position and none is negative, as for squared errors and cross
    entropies, w = √H v with random signs v has E[w wᵀ] = H, and the second term is ½ E⟨Jᵀw, dP⟩²:
    one more backward pass per draw of w gives it for all dP at once, without bias. Otherwise, or if
    a loss reads more than 64 outputs of a position, only the first term is used.

    Estimates rank hypotheses well, but their sizes may be far off: where later attention is sharp,
    a large change does much more than its gradient suggests.

    Args:
        model: a hooked model; left unchanged.
        task: gives the loss, which needs a gradient.
        batch: the examples, taken 128 at a time.
        circuit: the circuit in place; by default none, the intact model.
        draws: number of draws of w per example; with 0 there is no second term.

    Examples:
        >>> import retrieval_interp as ri
        >>> small = ri.load_checkpoint("small")
        >>> batch = small.task.sample(64, split="test")
        >>> attribution = ri.attribute(small.model, small.task, batch)
        >>> empty = ri.parse_circuit([], small.task)
        >>> cut = empty.cut(ri.parse_head_path("L2.H0 s0<-s2", small.task))
        >>> round(attribution.estimate(cut).effect, 4)
        0.0148
    """
    check_model_fits(model, batch, task)
    check_batch_fits(batch, task)
    circuit = Circuit.empty(task) if circuit is None else circuit
    circuit.check_roles(task)
    # Hooks may be made for this batch.
    parts = [batch] if hooks.has_hooks(model) else batch.parts(_PART)
    return Attribution(
        [pattern_gradients(model, task, p, circuit, draws, n) for n, p in enumerate(parts)]
    )


@dataclass
class PatternGradients:
    """Patterns of a run with a circuit in place, and gradients by them, by layer."""

    circuit: Circuit
    batch: Batch
    positions: list[Positions]  # by layer
    losses: Float[Tensor, " batch"]
    computed: list[Patterns]  # the heads' own patterns in this run, before any is replaced
    used: list[Patterns]  # the patterns with the circuit in place
    of_loss: list[Patterns]  # gradients of each example's loss
    of_outputs: list[Float[Tensor, "draw batch head dest src"]]  # those of `_random_projections`
    _products: dict[tuple[Head, Mechanism | None], Projections] = field(default_factory=dict)

    def change(self, head: Head, mechanism: Mechanism) -> Projections:
        """Multiply a head's change of pattern by the gradients of the loss and draws.

        For a mechanism along paths this is the sum over its rows, which many mechanisms have in
        common, unless chains overlap there: a position with several roles divides its attention.
        """
        return self._product(head, mechanism) - self._product(head, None)

    def _product(self, head: Head, mechanism: Mechanism | None) -> Projections:
        """Multiply a mechanism's pattern, or the one in place (None), by gradients."""
        key = head, mechanism
        if key not in self._products:
            rows = list[Mechanism]()
            if mechanism and mechanism.follows_paths:
                by_dest = groupby(mechanism.paths, attrgetter("dest"))
                rows = [mechanism.with_paths(row) for _, row in by_dest]
            dests = [path.dest for row in rows for path in row.paths[:1]]
            if len(rows) > 1 and not self.overlapping[dests][:, dests].any():
                self._products[key] = torch.stack([self._product(head, r) for r in rows]).sum(0)
            else:
                used = self.used[head.layer][:, head.head]
                pattern = used if mechanism is None else self.pattern(head, mechanism)
                gradients = self.of_loss[head.layer][None, :, head.head]
                if self.of_outputs:
                    of_outputs = self.of_outputs[head.layer][:, :, head.head]
                    gradients = torch.cat([gradients, of_outputs])
                self._products[key] = (gradients * pattern).sum((-2, -1))
        return self._products[key]

    @cached_property
    def overlapping(self) -> Bool[Tensor, "role role2"]:
        """Which pairs of roles stand at the same position in some example."""
        roles, size = self.batch.roles.transpose(1, 2), self.batch.inputs.shape[1]
        standing = torch.nn.functional.one_hot(roles + 1, size + 1)[..., 1:].amax(2).float()
        return torch.einsum("brp,bsp->rs", standing, standing).fill_diagonal_(0) > 0

    def pattern(self, head: Head, mechanism: Mechanism) -> Float[Tensor, "#batch dest src"]:
        """Return the pattern of a head with a mechanism."""
        computed = self.computed[head.layer][:, head.head]
        if mechanism.replaces_output:
            raise InputError(
                f"attribution: expected heads whose attention is replaced, found {head} "
                f"{mechanism.kind}; score it exactly instead"
            )
        if mechanism.keeps_own:
            return mechanism.changed(computed, self.batch.roles)
        return mechanism.pattern(self.positions[head.layer]).to(computed)


def pattern_gradients(
    model: HookedModel, task: Task, batch: Batch, circuit: Circuit, draws: int, seed: int = 0
) -> PatternGradients:
    """Run a model with a circuit in place, and differentiate by every pattern."""
    n_layers = model.cfg.n_layers
    shifts = dict[int, Tensor]()

    def shift(z: Float[Tensor, "batch pos head d_head"], hook: Any) -> Tensor:
        v = after["v"][hook.layer()]
        v = v.repeat_interleave(z.shape[2] // v.shape[2], dim=2)
        zero = z.new_zeros(len(z), z.shape[2], z.shape[1], v.shape[1]).requires_grad_()
        shifts[hook.layer()] = zero
        return z + torch.einsum("bhds,bshe->bdhe", zero, v)

    shifting = hooks.in_all_layers(model, "hook_z", shift)
    shifting += hooks.answer_hooks(model, batch, task.scored_roles)
    with torch.enable_grad():
        with (
            hooks.noting(model, "pattern") as before,
            ablated(model, circuit, batch),
            hooks.noting(model, "v", "pattern") as after,
            hooks.hooked(model, shifting),
        ):
            outputs = hooks.run_model(model, batch)
        computed, used = before["pattern"], after["pattern"]
        if not len(computed) == len(used) == len(shifts) == n_layers:
            raise InputError(
                f"attribution: expected {hooks.pattern_hook_name(0)}, hook_v, hook_z and their "
                f"counterparts to fire in {n_layers} layers; the model does not pass its attention "
                "through these hooks"
            )
        leaves = [shifts[layer] for layer in range(n_layers)]
        losses = task.example_losses(outputs.float(), batch).mean(dim=1)
        if not losses.requires_grad:
            raise InputError(
                f"attribution: expected a loss with a gradient, found that {task.loss_name} has "
                "none; score exactly instead"
            )
        projected = _random_projections(task, outputs, batch, draws, seed)
        of_loss = _gradients(losses.sum(), leaves)
        of_outputs = [_gradients((outputs.float() * w).sum(), leaves) for w in projected]
    if not all(bool(gradient.isfinite().all()) for gradient in of_loss):
        raise InputError(
            "attribution: expected finite gradients, found NaN or infinity; score exactly instead"
        )
    return PatternGradients(
        circuit=circuit,
        batch=batch,
        positions=hooks.positions_by_layer(model, batch),
        losses=losses.detach(),
        computed=[computed[layer].detach().float() for layer in range(n_layers)],
        used=[used[layer].detach().float() for layer in range(n_layers)],
        of_loss=of_loss,
        of_outputs=[torch.stack(of_layer) for of_layer in zip(*of_outputs)],
    )


def _random_projections(
    task: Task, outputs: Float[Tensor, "batch pos d_out"], batch: Batch, draws: int, seed: int
) -> list[Float[Tensor, "batch pos d_out"]]:
    """Draw weights w = √H v of the outputs y (see `attribute`), if H allows it.

    E[(w · dy)²] = dyᵀ H dy, with H the second derivative of the loss by the outputs.
    """
    generator = torch.Generator().manual_seed(seed)
    y = outputs.detach().double().requires_grad_()  # small curvatures are differences
    loss = task.example_losses(y, batch).mean(dim=1).sum()
    (gradient,) = torch.autograd.grad(loss, y, create_graph=True, allow_unused=True)
    if not draws or gradient is None or not gradient.requires_grad:
        return []
    read = (gradient != 0).flatten(0, -2).any(0).nonzero()[:, 0]
    if not 0 < len(read) <= _READ:
        return []

    def signs() -> Tensor:
        drawn = random_signs(torch.Size((*outputs.shape[:-1], len(read))), generator)
        return torch.zeros_like(y).index_copy(-1, read, drawn.to(y))

    def product(v: Tensor) -> Tensor:
        (hessian_product,) = torch.autograd.grad(gradient, y, v, retain_graph=True)
        return hessian_product.index_select(-1, read)

    units = torch.nn.functional.one_hot(read, y.shape[-1]).to(y)
    blocks = torch.stack([product(unit.expand(y.shape)) for unit in units], dim=-1)
    tried = signs()
    expected, values = product(tried), (blocks @ tried[..., read, None])[..., 0]
    if not torch.allclose(values, expected, rtol=1e-3, atol=1e-5 * float(expected.abs().max())):
        return []
    sizes, vectors = torch.linalg.eigh(blocks)
    if not float(sizes.max()) > 0 or float(sizes.min()) < -1e-4 * float(sizes.max()):
        return []
    # The symmetric root does not depend on the basis of equal sizes, which differs by device.
    root = vectors * sizes.clamp(min=0).sqrt()[..., None, :] @ vectors.mT
    weights = [(root @ signs()[..., read, None])[..., 0] for _ in range(draws)]
    return [torch.zeros_like(y).index_copy(-1, read, w).float() for w in weights]


def random_signs(shape: torch.Size, generator: torch.Generator) -> Tensor:
    """Draw signs, 1 or -1, on the CPU so that they are the same for every device."""
    return 2.0 * torch.randint(0, 2, shape, generator=generator) - 1


def _gradients(of: Tensor, by: list[Tensor]) -> list[Tensor]:
    gradients = torch.autograd.grad(of, by, retain_graph=True, allow_unused=True)
    return [torch.zeros_like(x).float() if g is None else g.float() for g, x in zip(gradients, by)]
