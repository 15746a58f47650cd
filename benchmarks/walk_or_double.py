"""Whether models walk along the chain or double: what is left if they may only walk.

    python benchmarks/walk_or_double.py --models k-hop small runs/NAME ... [--json FILE]

A *hop* of length d is attention from a role that stands for x_i to one that stands for x_{i+d}
(s_{2i} and s_{2i+1} both stand for x_i). Heads that give a hop a fifth of the role's attention or
more make it; hops of a kind are cut, that is, their attention is set to zero in all heads that make
them. (To cut the thin attention of idle heads as well would harm by itself.)

- *query alone*: only s0 hops; what other roles bring nearer cannot be used;
- *single hops*: nothing hops farther than the next symbol;
- *whole*: nothing is cut.

A model that walks keeps its answer with one of the two. One that doubles needs both: other roles
that hop, and hops of more than one symbol. `kept` is the share of what it has learned of x_D.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from measure import arguments, machine, prepare, report

import retrieval_interp as ri
from retrieval_interp.circuits.circuit import Circuit, Head, RolePath
from retrieval_interp.circuits.flow.bounds import causal_depth
from retrieval_interp.circuits.mechanisms import Cut
from retrieval_interp.circuits.scores.scorer import Scorer
from retrieval_interp.circuits.scores.tolerance import kept_share

MADE = 0.2  # of the role's attention


def hops(n_roles: int, cut: Callable[[int, int, int], bool]) -> Iterator[RolePath]:
    """The hops for which `cut(dest, dest symbol, length)` holds."""
    for dest in range(n_roles):
        for src in range(1, n_roles):
            length = src // 2 - dest // 2
            if length > 0 and cut(dest, dest // 2, length):
                yield RolePath(dest, src)


KINDS: dict[str, Callable[[int, int, int], bool]] = {
    "query alone": lambda dest, symbol, length: dest != 0,
    "single hops": lambda dest, symbol, length: length > 1,
}


def row(name: str, examples: int, device: torch.device) -> dict[str, Any]:
    """One model's losses of x_D, whole and with kinds of hops cut."""
    checkpoint = ri.load_checkpoint(name, device)
    model, task = checkpoint.model, checkpoint.task
    batch = task.sample(examples, device=device, split="test")
    scorer = Scorer(model, task, batch)
    n_roles, config = len(task.role_names), model.cfg
    steps = (n_roles - 1) // 2

    def last(circuit: Circuit) -> float:
        return float(scorer.losses(circuit)[:, -1].mean())

    attention = ri.mean_attention(model, batch).cpu()
    whole = last(scorer.empty_circuit)
    found: dict[str, Any] = {
        "model": name,
        "D": steps,
        "least": causal_depth(steps),
        "layers": config.n_layers,
        "heads": config.n_heads,
        "x_D": whole,
    }
    for kind, cut in KINDS.items():
        paths = [path for path in hops(n_roles, cut) if _looks_back(path, batch.roles)]
        mechanisms = {}
        for layer, head in itertools.product(range(config.n_layers), range(config.n_heads)):
            made = [path for path in paths if attention[layer, head][path] >= MADE]
            mechanisms[Head(layer, head)] = Cut(tuple(made))
        loss = last(Circuit(mechanisms, n_roles, task=task.to_dict()))
        found[kind] = loss
        found[f"{kind}, kept"] = kept_share(loss, whole, task.plateau)
    return found


def _looks_back(path: RolePath, roles: torch.Tensor) -> bool:
    return bool((roles[:, :, path.src] <= roles[:, :, path.dest]).all())


def main(argv: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--models", nargs="+", default=["small", "k-hop"])
    parser.add_argument("--examples", type=int, default=512)
    options = parser.parse_args(argv)
    device = prepare(options)
    examples = 16 if options.quick else options.examples
    rows = [row(name, examples, device) for name in options.models]
    report(rows, options, argv, machine=machine(device), examples=examples)


if __name__ == "__main__":
    main()
