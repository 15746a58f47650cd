"""What acts on each position alone, computed only where it differs from another run.

Attention alone moves anything between positions. MLPs and linear maps give the same where they take
the same, as before the first position that a circuit reaches: there what they gave is used again.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

Rows = dict[nn.Module, tuple[Tensor, Tensor]]  # what each module took and gave, [batch pos d]


def position_wise(model: Any) -> list[nn.Module]:
    """A model's MLPs and the linear maps of its attention, if they are modules."""
    found: list[nn.Module] = []
    for block in model.blocks:
        parts = {name: getattr(block, name, None) for name in ("attn", "mlp")}
        if isinstance(parts["attn"], nn.Module):
            leaves = [each for each in parts["attn"].modules() if not list(each.children())]
            found += [x for x in leaves if getattr(getattr(x, "weight", None), "ndim", 0) == 2]
        if isinstance(parts["mlp"], nn.Module):
            found.append(parts["mlp"])
    return found


@contextmanager
def reusing(modules: list[nn.Module], known: Rows, noted: Rows | None = None) -> Iterator[None]:
    """Compute only positions at which modules take something else than in a run that is known.

    What they take and give is `noted`.
    """
    taken: dict[nn.Module, Tensor] = {}
    differ: dict[nn.Module, Tensor] = {}

    def before(module: nn.Module, args: tuple[Any, ...]) -> Any:
        if len(args) != 1 or not isinstance(args[0], Tensor) or args[0].ndim != 3:
            return None
        taken[module] = args[0]
        if module not in known or known[module][0].shape != args[0].shape:
            return None
        rows = (args[0] != known[module][0]).any(-1)
        rows[0, 0] |= ~rows.any()  # there is always something to compute
        differ[module] = rows
        return (args[0][rows][None],)

    def after(module: nn.Module, args: Any, output: Any) -> Any:
        took, rows = taken.pop(module, None), differ.pop(module, None)
        if rows is not None:
            computed, output = output, known[module][1].clone()
            output[rows] = computed[0]
        fits = took is not None and isinstance(output, Tensor) and output.ndim == 3
        if noted is not None and took is not None and fits:
            noted[module] = took, output
        return output

    with ExitStack() as stack:
        for module in modules:
            stack.enter_context(module.register_forward_pre_hook(before))
            stack.enter_context(module.register_forward_hook(after))
        yield


def alone(rows: Rows) -> list[nn.Module]:
    """The modules that give the same for one position without the others."""
    return [
        module
        for module, (took, gave) in rows.items()
        if bool((module(took[-1:, -1:]) - gave[-1:, -1:]).abs().max() <= 1e-4 * gave.abs().max())
    ]
