"""What acts on each position alone, computed only where it differs from another run.

Attention alone moves anything between positions. MLPs and linear maps give the same where they take
the same, as before the first position that a circuit reaches: there what they gave is used again.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

Rows = dict[nn.Module, tuple[Tensor, Tensor]]  # what each module took and gave, [batch pos d]


def position_wise(model: Any) -> list[nn.Module]:
    """A model's MLPs and the linear maps of its attention, if they are modules."""
    mlps = [getattr(block, "mlp", None) for block in model.blocks]
    inside = [each for block in model.blocks for each in block.attn.modules()]
    linear = [each for each in inside if getattr(getattr(each, "weight", None), "ndim", 0) == 2]
    leaves = [each for each in linear if not list(each.children())]
    return [*(each for each in mlps if isinstance(each, nn.Module)), *leaves]


@contextmanager
def reusing(modules: list[nn.Module], known: Rows, noted: Rows | None = None) -> Iterator[None]:
    """Compute modules only at positions that differ from a known run; note what they do."""

    def partly(module: nn.Module, whole: Callable[..., Any]) -> Callable[..., Any]:
        def forward(x: Tensor, *others: Any, **named: Any) -> Any:
            if others or named:  # which may differ, as the residual of a Bloom's MLP
                return whole(x, *others, **named)
            took, gave = known.get(module, (x[:0], x))
            if x.ndim != 3 or took.shape != x.shape:
                output = whole(x)
            else:
                rows = (x != took).any(-1)
                rows[0, 0] |= ~rows.any()  # there is always something to compute
                output = gave.clone()
                output[rows] = whole(x[rows][None])[0]
            if noted is not None and isinstance(output, Tensor) and x.ndim == output.ndim == 3:
                noted[module] = x, output
            return output

        return forward

    before = [vars(module).get("forward") for module in modules]
    try:
        for module in modules:
            vars(module)["forward"] = partly(module, module.forward)
        yield
    finally:
        for module, forward in zip(modules, before):
            vars(module)["forward"] = forward
            if forward is None:
                del vars(module)["forward"]


def alone(rows: Rows) -> list[nn.Module]:
    """The modules that give the same for one position without the others."""
    return [
        module
        for module, (took, gave) in rows.items()
        if bool((module(took[-1:, -1:]) - gave[-1:, -1:]).abs().max() <= 1e-4 * gave.abs().max())
    ]
