"""Gradients of the loss, and of random projections of the outputs, by attention pattern.

At `hook_z` a head's result is z = P v, with P its pattern and v its values. There a zero tensor e
is added as z + e v. The gradient by e is that by P, on any model that fires `hook_v` and `hook_z`,
whether or not it uses the pattern that a hook returns.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from retrieval_interp.circuits.attention import cut_paths
from retrieval_interp.circuits.circuit import Circuit, Head
from retrieval_interp.circuits.hooks.ablated import ablated
from retrieval_interp.circuits.hooks.points import call_options, is_causal, pattern_hook_name
from retrieval_interp.circuits.mechanisms import Mechanism, Where
from retrieval_interp.circuits.runs.hook_runs import answer_hooks
from retrieval_interp.tasks import Batch, InputError, Task

Projection = tuple[Float[Tensor, " batch"], Float[Tensor, "draw batch"]]


@dataclass
class PatternGradients:
    """Patterns of all heads with a circuit in place, and gradients by them.

    Attributes:
        circuit: the circuit in place.
        batch: the examples.
        losses: each example's loss.
        own: what the model itself attends to, by layer.
        used: the patterns with the circuit in place, by layer.
        of_loss: each example's gradient of its loss, by layer.
        of_outputs: the gradients of random projections of the outputs, scaled by the square root
            of the loss's second derivative, by layer; none where that is not diagonal.
        causal: whether the model masks later positions.
    """

    circuit: Circuit
    batch: Batch
    losses: Float[Tensor, " batch"]
    own: list[Float[Tensor, "batch head dest src"]]
    used: list[Float[Tensor, "batch head dest src"]]
    of_loss: list[Float[Tensor, "batch head dest src"]]
    of_outputs: list[Float[Tensor, "draw batch head dest src"]]
    causal: bool
    _known: dict[tuple[Head, Mechanism], Projection] = field(default_factory=dict)

    def projections(self, circuit: Circuit) -> Projection:
        """The products of gradients and changed patterns, of the loss and of each projection.

        Raises:
            InputError: the circuit does not fit the batch.
        """
        heads = sorted(circuit.mechanisms.keys() | self.circuit.mechanisms.keys())
        first = torch.zeros_like(self.losses)
        second = first.expand(len(self.of_outputs[0]) if self.of_outputs else 0, -1)
        for head in heads:
            if (mechanism := circuit[head]) != self.circuit[head]:
                key = head, mechanism
                if key not in self._known:
                    self._known[key] = self._projection(*key)
                first, second = first + self._known[key][0], second + self._known[key][1]
        return first, second

    def _projection(self, head: Head, mechanism: Mechanism) -> Projection:
        change = self._pattern(head, mechanism) - self.used[head.layer][:, head.head]
        first = torch.einsum("bds,bds->b", self.of_loss[head.layer][:, head.head], change)
        if not self.of_outputs:
            return first, first.new_zeros(0, len(first))
        gradient = self.of_outputs[head.layer][:, :, head.head]
        return first, torch.einsum("rbds,bds->rb", gradient, change)

    def _pattern(self, head: Head, mechanism: Mechanism) -> Float[Tensor, "#batch dest src"]:
        own = self.own[head.layer][:, head.head]
        if mechanism.keeps_own:
            return cut_paths(own, mechanism.paths, self.batch.roles)
        return mechanism.pattern(Where.of(self.batch, self.causal)).to(own)


def pattern_gradients(
    model: Any, task: Task, batch: Batch, circuit: Circuit, draws: int, seed: int = 0
) -> PatternGradients:
    """Run a model with a circuit in place, and differentiate by every pattern.

    Args:
        model: a hooked model; left unchanged.
        task: gives the loss.
        batch: the examples.
        circuit: mechanisms of some heads; all others keep their attention.
        draws: number of random projections of the outputs, where the loss has a diagonal second
            derivative, as a squared error has; none otherwise.
        seed: of the projections.

    Raises:
        InputError: the loss has no gradient, a gradient is not finite, or the model does not fire
            its hooks.
    """
    n_layers = model.cfg.n_layers
    own: dict[int, Tensor] = {}
    used: dict[int, Tensor] = {}
    values: dict[int, Tensor] = {}
    shifts: dict[int, Tensor] = {}

    def note(kept: dict[int, Tensor], detach: bool = True) -> Callable[..., None]:
        def hold(activation: Tensor, hook: Any) -> None:
            kept[hook.layer()] = activation.detach() if detach else activation

        return hold

    def shift(z: Float[Tensor, "batch pos head d_head"], hook: Any) -> Tensor:
        v = values[hook.layer()]
        v = v.repeat_interleave(z.shape[2] // v.shape[2], dim=2)
        zero = z.new_zeros(len(z), z.shape[2], z.shape[1], v.shape[1]).requires_grad_()
        shifts[hook.layer()] = zero
        return z + torch.einsum("bhds,bshe->bdhe", zero, v)

    places = [f"blocks.{layer}.attn.hook_" for layer in range(n_layers)]
    before = [(pattern_hook_name(layer), note(own)) for layer in range(n_layers)]
    after = [
        *((f"{place}v", note(values, detach=False)) for place in places),
        *((f"{place}z", shift) for place in places),
        *((pattern_hook_name(layer), note(used)) for layer in range(n_layers)),
        *answer_hooks(model, batch, task.answer_roles),
    ]
    with torch.enable_grad():
        with (
            model.hooks(fwd_hooks=before),
            ablated(model, circuit, batch),
            model.hooks(fwd_hooks=after),
        ):
            outputs = model(batch.inputs, **call_options(batch))
        if not len(own) == len(used) == len(shifts) == n_layers:
            raise InputError(
                f"attribution: expected {pattern_hook_name(0)}, hook_v, hook_z and their "
                f"counterparts to fire in {n_layers} layers; the model does not pass its attention "
                "through these hooks"
            )
        leaves = [shifts[layer] for layer in range(n_layers)]
        losses = example_means(task, outputs, batch)
        if not losses.requires_grad:
            raise InputError(
                f"attribution: expected a loss with a gradient, found that {task.loss_name} has "
                "none; score exactly instead"
            )
        projected = random_projections(task, outputs, batch, draws, seed)
        of_loss = _gradients(losses.sum(), leaves, keep=bool(projected))
        of_outputs = [
            _gradients((outputs.float() * weights).sum(), leaves, keep=place + 1 < len(projected))
            for place, weights in enumerate(projected)
        ]
    if not all(bool(gradient.isfinite().all()) for gradient in of_loss):
        raise InputError(
            "attribution: expected finite gradients, found NaN or infinity; score exactly instead"
        )
    return PatternGradients(
        circuit,
        batch,
        losses.detach(),
        [own[layer].float() for layer in range(n_layers)],
        [used[layer].float() for layer in range(n_layers)],
        of_loss,
        [torch.stack(of_layer) for of_layer in zip(*of_outputs)],
        is_causal(model),
    )


def example_means(
    task: Task, outputs: Float[Tensor, "batch pos d_out"], batch: Batch
) -> Float[Tensor, " batch"]:
    """Each example's mean loss, in float32."""
    return task.example_losses(outputs.float(), batch).mean(dim=1)


def random_projections(
    task: Task, outputs: Float[Tensor, "batch pos d_out"], batch: Batch, draws: int, seed: int
) -> list[Float[Tensor, "batch pos d_out"]]:
    """Random weights w of the outputs y, such that E[(w · dy)²] = dyᵀ H dy.

    H is the second derivative of the loss by the outputs. Where it is diagonal, w = ±√H with random
    signs does it, and signs v give H as v * (H v). If that is not the same for two choices of signs
    (cross entropy), or H is zero, there are none.
    """
    generator = torch.Generator().manual_seed(seed)

    def draw() -> Tensor:
        return random_signs(outputs.shape, generator).to(outputs.device)

    at = outputs.detach().float().requires_grad_()
    (gradient,) = torch.autograd.grad(
        example_means(task, at, batch).sum(), at, create_graph=True, allow_unused=True
    )
    if not draws or gradient is None or not gradient.requires_grad:
        return []
    diagonals = []
    for weights in (draw(), draw()):
        (product,) = torch.autograd.grad(gradient, at, weights, retain_graph=True)
        diagonals.append(weights * product)
    one, other = diagonals
    if not torch.allclose(one, other, rtol=1e-4, atol=1e-7 * float(one.abs().max())):
        return []
    if not bool((one > 0).any()) or bool((one < 0).any()):
        return []
    return [one.sqrt() * draw() for _ in range(draws)]


def random_signs(shape: torch.Size, generator: torch.Generator) -> Tensor:
    """Signs, 1 or -1, drawn on the CPU so that they are the same for every device."""
    return 2.0 * torch.randint(0, 2, shape, generator=generator) - 1


def _gradients(of: Tensor, by: list[Tensor], keep: bool) -> list[Tensor]:
    found = torch.autograd.grad(of, by, retain_graph=keep, allow_unused=True)
    return [torch.zeros_like(x).float() if g is None else g.float() for g, x in zip(found, by)]
