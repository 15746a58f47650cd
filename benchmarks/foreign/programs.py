"""Circuits of Transformer Programs (princeton-nlp/TransformerPrograms): the program is the truth.

    python benchmarks/foreign/programs.py PATH [--models hist ...] [--json FILE]

PATH is the checked-out repository of Friedman et al. (arXiv 2306.01128). Their seven programs of
categories alone are read as they are printed. A head attends to the nearest position that holds
what its predicate wants (to the first if there is none, to itself only if there is no other, as in
their model), and hands on a value of that position; an MLP is a table of two values.
A program becomes a transformer whose residual has a place for every value of every variable.
Answers, and what a cut does to them, are computed by looking up the tables, without a transformer.
"""

import ast
import contextlib
import io
from collections.abc import Callable, Sequence
from itertools import combinations, product
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pandas as pd
import torch
from elsewhere import Foreign, command
from torch import Tensor

import retrieval_interp as ri
from retrieval_interp.circuits import Circuit, Head, HeadPath, RolePath
from retrieval_interp.circuits.losses import standard_error
from tests.models import stock_transformer

FOLDER = "programs/rasp_categorical_only"
STEP = 40.0  # by which the score of a farther position is lower


class Lookup(NamedTuple):
    """A head, or an MLP if `head` is None.

    A head reads query, key and value, and its table [query, key] says whether it wants a key. The
    last row and column are for no value, which a head brings where its path is cut.
    """

    name: str
    layer: int
    head: int | None
    reads: tuple[str, ...]
    table: Tensor


Attended = dict[Head, Tensor]


class Program:
    """The variables that are printed with their values, what looks them up, and the weights."""

    def __init__(self, file: Path) -> None:
        table = file.with_name(f"{file.stem}_weights.csv")
        weights = pd.read_csv(table, index_col=[0, 1], dtype={"feature": str, "value": str})
        weights = weights[~weights.index.duplicated()]  # tokens that no text has share a name
        self.ones = torch.tensor(weights.loc[("ones", "_")].to_numpy(), dtype=torch.float32)
        self.classes = list(weights.columns)
        self.values: dict[str, list[Any]] = {"tokens": list(weights.loc["tokens"].index)}
        self.values["positions"] = sorted(map(int, weights.loc["positions"].index))
        self.lookups: list[Lookup] = []
        self.printed = file.read_text()
        self.causal = "keys[: i + 1]" in self.printed
        tree = ast.parse(self.printed)
        self._read(next(part for part in tree.body if getattr(part, "name", "") == "run").body)
        self.weights = {
            name: torch.tensor(weights.loc[[(name, f"{v}") for v in values]].to_numpy()).float()
            for name, values in self.values.items()
        }

    def _read(self, printed: list[ast.stmt]) -> None:
        functions: dict[str, Callable[..., Any]] = {}
        patterns: dict[str, list[str]] = {}
        for part in printed:
            match part:
                case ast.FunctionDef():
                    exec(compile(ast.Module([part], []), "program", "exec"), functions)
                case ast.Assign([ast.Name(name)], ast.Call(ast.Name("select_closest"), given)):
                    patterns[name] = [argument.id for argument in given]
                case ast.Assign([ast.Name(name)], ast.Call(ast.Name("aggregate"), given)):
                    pattern, value = (argument.id for argument in given)
                    key, query, predicate = patterns[pattern]
                    self.values[name] = self.values[value]
                    self._add(name, functions[predicate], query, key, value)
                case ast.Assign([ast.Name(name)], ast.ListComp(ast.Call(ast.Name(mlp)), loops)):
                    named = [n.id for n in ast.walk(loops[0].iter) if isinstance(n, ast.Name)]
                    self.values[name] = self.values["positions"]  # numbers below the length
                    self._add(name, functions[mlp], *(n for n in named if n != "zip"))

    def _add(self, name: str, function: Callable[..., Any], *reads: str) -> None:
        kind, layer, number, _ = name.split("_")
        given = [[*self.values[read], None] for read in reads[:2]]
        table = torch.tensor([int(function(*pair) or 0) for pair in product(*given)])
        table = table.view([len(values) for values in given])
        head = int(number) if kind == "attn" else None
        default = 0 if head is not None else table.flatten()[-1]
        if any((table.select(place, -1) != default).any() for place in range(table.ndim)):
            raise ValueError(f"{name}: expected no value to be as any unknown one")
        self.lookups.append(Lookup(name, int(layer), head, reads, table))

    def look_up(self, tokens: Tensor, cut: Sequence[HeadPath] = ()) -> tuple[Tensor, Attended]:
        """Logits of tokens [example, pos], where heads bring nothing along some paths.

        Also where each head attends, [example, pos].
        """
        length = tokens.shape[1]
        values = {"tokens": tokens, "positions": torch.arange(length).expand_as(tokens)}
        attended: Attended = {}
        for lookup in self.lookups:
            read = [values[name] for name in lookup.reads]
            if lookup.head is None:
                values[lookup.name] = lookup.table[tuple(read)]
                continue
            wanted = lookup.table[read[0][:, :, None], read[1][:, None, :]].bool()
            wanted = wanted.tril() if self.causal else wanted
            src = (ranks(length) + 3 * length * ~wanted).argmin(-1) * wanted.any(-1)
            brought = read[2].gather(1, src)
            for (layer, head), path in cut:
                if (layer, head) == (lookup.layer, lookup.head):
                    none = len(self.values[lookup.name])
                    brought[src[:, path.dest] == path.src, path.dest] = none
            values[lookup.name] = brought
            attended[Head(lookup.layer, lookup.head)] = src
        none = torch.zeros(1, len(self.classes))
        held = (torch.cat([self.weights[name], none])[value] for name, value in values.items())
        return sum(held, self.ones), attended


def ranks(length: int) -> Tensor:
    """[dest, src]: the nearest positions first, of two the one before; the own one last."""
    place = torch.arange(length)
    steps = place[None] - place[:, None]
    return torch.where(steps == 0, 2 * length, 2 * steps.abs() - (steps < 0).long())


Unit = tuple[tuple[int, ...], int, float]  # where a neuron needs ones, where it adds what


def neurons(program: Program, layer: int, keys: list[str], places: Any) -> list[Unit]:
    """Those of the MLPs of a layer, and those that tell what the first position holds."""
    own: list[Unit] = []
    for name, _, head, reads, table in (x for x in program.lookups if x.layer == layer):
        for first in (False, True)[: 1 + (name in keys)]:
            base, at_first = places[name, first], (places["positions", False],) * first
            if head is not None:
                values = range(len(program.values[name])) if first else ()
                own += [((places[name, False] + v, *at_first), base + v, 1.0) for v in values]
                continue
            default = int(table.flatten()[-1])
            own.append((at_first, base + default, 1.0))
            for given in (table != default).nonzero().tolist():
                inputs = *(places[x, False] + v for x, v in zip(reads, given)), *at_first
                own += [
                    (inputs, base + int(table[tuple(given)]), 1.0),
                    (inputs, base + default, -1.0),
                ]
    return own


@torch.no_grad()
def transformer(program: Program, length: int) -> Any:
    """The program in weights. A key also has a place for each value that the first position holds.

    The scores of a head: what it wants is above the first position, which is above all others, and
    the first position is not raised if it holds what is wanted.
    """
    heads = [lookup for lookup in program.lookups if lookup.head is not None]
    keys = list(dict.fromkeys(lookup.reads[1] for lookup in heads))
    places: dict[tuple[str, bool], int] = {}  # where a variable begins, anywhere or at the first
    width = 0
    for name, first in [*((n, False) for n in program.values), *((n, True) for n in keys)]:
        places[name, first] = width
        width += len(program.values[name])

    def rows(name: str, first: bool = False) -> slice:
        return slice(places[name, first], places[name, first] + len(program.values[name]))

    sizes = {name: len(values) for name, values in program.values.items()}
    layers = 1 + max(lookup.layer for lookup in heads)
    units = [neurons(program, layer, keys, places) for layer in range(layers)]
    model = stock_transformer(
        n_layers=layers,
        n_heads=1 + max(lookup.head for lookup in heads),
        d_model=width,
        d_head=3 * max(sizes.values()),
        d_mlp=max(map(len, units)),
        n_ctx=length,
        d_vocab=sizes["tokens"],
        d_vocab_out=len(program.classes),
        act_fn="relu",
        attention_dir="causal" if program.causal else "bidirectional",
        normalization_type=None,
        use_attn_scale=False,
        device="cpu",
    )
    for parameter in model.parameters():
        parameter.zero_()
    start = program.values["tokens"].index("<s>")
    model.embed.W_E[:, rows("tokens")] = torch.eye(sizes["tokens"])
    model.pos_embed.W_pos[:, rows("positions")] = torch.eye(length, sizes["positions"])
    if "tokens" in keys:
        model.embed.W_E[start, places["tokens", True] + start] = 1
    if "positions" in keys:
        model.pos_embed.W_pos[0, places["positions", True]] = 1
    raised = 4 * length * STEP
    for lookup in heads:
        attn, head = model.blocks[lookup.layer].attn, lookup.head
        query, key, value = lookup.reads
        wanted, size = lookup.table[:-1, :-1].float(), sizes[key]
        attn.W_Q[head, rows(query), :size] = 2 * raised * wanted
        attn.W_Q[head, rows(query), size : 2 * size] -= raised * wanted
        near, where = -STEP * ranks(length), slice(2 * size, 2 * size + length)
        near[:, 0] += raised
        attn.W_Q[head, rows("positions"), where][:length] = near
        attn.W_K[head, rows(key), :size] = torch.eye(size)
        attn.W_K[head, rows(key, True), size : 2 * size] = torch.eye(size)
        attn.W_K[head, rows("positions"), where] = torch.eye(sizes["positions"], length)
        attn.W_V[head, rows(value), : sizes[value]] = torch.eye(sizes[value])
        attn.W_O[head, : sizes[value], rows(lookup.name)] = torch.eye(sizes[value])
    for block, own in zip(model.blocks, units):
        for unit, (inputs, output, factor) in enumerate(own):
            for place in inputs:
                block.mlp.W_in[place, unit] += 1
            block.mlp.b_in[unit] = 1 - len(inputs)
            block.mlp.W_out[unit, output] += factor
    for name, weights in program.weights.items():
        model.unembed.W_U[rows(name)] = weights
    model.unembed.b_U[:] = program.ones
    return model.eval()


class Printed(Foreign):
    """What a program answers at all positions but the first (and `</s>`); roles are positions."""

    answer_role = None
    published = ()

    def __init__(self, title: str) -> None:
        self.title = title
        self.ended = title in ("reverse", "sort")
        self.length = 16 if title.startswith("dyck") else 8
        self.asked = range(1, self.length - self.ended)
        self.role_names = tuple(f"p{place}" for place in range(self.length))

    def model(self, path: Path) -> Any:
        self.path = path
        self.program = Program(path / FOLDER / self.title / f"{self.title}.py")
        return transformer(self.program, self.length)

    def sentence(self, rng: Random) -> list[str]:
        size = self.length - 1 - self.ended
        if not self.title.startswith("dyck"):
            numbers = [word for word in self.program.values["tokens"] if word.isdigit()]
            return ["<s>", *rng.choices(numbers, k=size), *["</s>"] * self.ended]
        pairs, text = ["()", "{}"][: int(self.title[-1])], ""
        for _ in range(rng.choice((0, rng.randint(1, size // 2)))):  # balanced so far, or any
            left, right = rng.choice(pairs)
            text = rng.choice((text + left + right, left + text + right))
        return ["<s>", *text, *rng.choices("".join(pairs), k=size - len(text))]

    def sample(self, n, seed=0, device="cpu", split="train", start=0):
        known = self.program.values["tokens"].index
        drawn = (self.sentence(Random(f"{seed} {split} {start + at}")) for at in range(n))
        tokens = torch.tensor([[known(word) for word in words] for words in drawn])
        answers = self.program.look_up(tokens)[0].argmax(-1)[:, list(self.asked)]
        roles = torch.arange(self.length).expand(n, 1, -1)
        return ri.Batch(tokens, answers, roles).to(device)

    def more(self, model: Any, circuit: Circuit) -> dict[str, Any]:
        """What the tables say of the model, the circuit, and the sets of paths that are needed."""
        batch, program = self.sample(512, split="test"), self.program
        logits, attended = program.look_up(batch.inputs)
        with torch.no_grad():
            apart = float((model(batch.inputs) - logits).abs().max())

        def share(head: Head, path: RolePath) -> float:
            return float((attended[head][:, path.dest] == path.src).double().mean())

        def losses(cut: Sequence[HeadPath]) -> Tensor:
            return self.example_losses(program.look_up(batch.inputs, cut)[0], batch)[:, 0]

        bar = ri.score_circuit(model, self, circuit, batch, controls=0).tolerance
        replaced = [path for path in circuit.every_path() if path.head in circuit.mechanisms]
        right = sum(share(*path) >= 0.5 for path in replaced)
        sets = ri.needed_paths(model, self)
        confirmed = refuted = 0
        for paths in sets:  # above the tolerance, and below it with any one of the paths
            over = [losses(paths) - bar]
            over += [bar - losses(fewer) for fewer in combinations(paths, len(paths) - 1)]
            confirmed += all(rise.mean() > 0 for rise in over)
            refuted += any(rise.mean() < -2 * standard_error(rise) for rise in over)
        alone = [
            HeadPath(head, RolePath(dest, src))
            for head, (dest, src) in product(attended, product(range(self.length), repeat=2))
        ]
        rises = {path: losses([path]) - bar for path in alone if share(*path) >= 0.05}
        needed = {path for path, rise in rises.items() if rise.mean() > 2 * standard_error(rise)}
        return {
            "agrees": f"{right} of {len(replaced)}",
            "apart": apart,
            "as printed": self.as_printed(batch),
            "sets": f"{confirmed} of {len(sets)}",
            "refuted": refuted,
            "alone": f"{sum((path,) in sets for path in needed)} of {len(needed)}",
        }

    def as_printed(self, batch: ri.Batch, examples: int = 64) -> float:
        """How often the printed code says the same; there the own position is not always last."""
        names: dict[str, Any] = {}
        words, same = self.program.values["tokens"], 0
        with contextlib.chdir(self.path), contextlib.redirect_stdout(io.StringIO()):
            exec(self.program.printed, names)
            for tokens, answers in zip(batch.inputs[:examples].tolist(), batch.targets.tolist()):
                said = names["run"]([words[token] for token in tokens])
                pairs = zip(self.asked, answers)
                same += sum(said[place] == self.program.classes[answer] for place, answer in pairs)
        return same / (examples * len(self.asked))


TITLES = ("hist", "double_hist", "sort", "reverse", "most_freq", "dyck1", "dyck2")
main = command([Printed(title) for title in TITLES])

if __name__ == "__main__":
    main()
