"""Circuits of Transformer Programs (princeton-nlp/TransformerPrograms): the program is the truth.

    python benchmarks/foreign/programs.py PATH [--models hist ...] [--json FILE]

PATH is the checked-out repository of Friedman et al. (arXiv 2306.01128). Their seven programs of
categories alone are read as they are printed. A head attends to the nearest position that holds
what its predicate wants (to the first if there is none, to itself only if there is no other, as in
their model), and hands on a value of that position; an MLP is a table of two values.
A program becomes a transformer whose residual has a place for every value of every variable.
`own last` is the share of answers that the printed code gives, too, if it also puts a head's own
position last; `as printed`, as it is.
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
from retrieval_interp.circuits.hooks import heads_of
from retrieval_interp.circuits.losses import standard_error
from tests.models import stock_transformer

FOLDER = "programs/rasp_categorical_only"
STEP = 40.0  # by which the score of a farther position is lower
OWN_LAST = ("len(matches) if j == i", "len(keys) if j == i")  # as in the models that were trained


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

    @property
    def default(self) -> int:
        """The value of an MLP for what its table does not know."""
        return int(self.table.flatten()[-1])

    def exceptions(self) -> list[list[int]]:
        """What an MLP reads where its value is another one."""
        return (self.table != self.default).nonzero().tolist()


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
        lookup = Lookup(name, int(layer), head, reads, table)
        default = 0 if head is not None else lookup.default
        if any((table.select(place, -1) != default).any() for place in range(table.ndim)):
            raise ValueError(f"{name}: expected no value to be as any unknown one")
        self.lookups.append(lookup)


def ranks(length: int) -> Tensor:
    """[dest, src]: the nearest positions first, of two the one before; the own one last."""
    place = torch.arange(length)
    steps = place[None] - place[:, None]
    return torch.where(steps == 0, 2 * length, 2 * steps.abs() - (steps < 0).long())


@torch.no_grad()
def transformer(program: Program, length: int) -> Any:
    """The program in weights.

    In the scores of a head, what it wants is above the first position, which is above all others.
    The first position is not raised if it holds what is wanted: so its keys are halved.
    """
    heads = [lookup for lookup in program.lookups if lookup.head is not None]
    mlps = [lookup for lookup in program.lookups if lookup.head is None]
    layers = range(1 + max(lookup.layer for lookup in heads))
    neurons = [
        [(mlp, given) for mlp in mlps if mlp.layer == layer for given in mlp.exceptions()]
        for layer in layers
    ]
    place, width = dict[str, slice](), 0  # of each variable in the residual
    for name, values in program.values.items():
        place[name] = slice(width, width + len(values))
        width += len(values)
    model = stock_transformer(
        n_layers=len(layers),
        n_heads=1 + max(lookup.head for lookup in heads),
        d_model=width,
        d_head=max(map(len, program.values.values())) + length,  # for keys, and for positions
        d_mlp=max(map(len, neurons)),
        n_ctx=length,
        d_vocab=len(program.values["tokens"]),
        d_vocab_out=len(program.classes),
        act_fn="relu",
        attention_dir="causal" if program.causal else "bidirectional",
        normalization_type=None,
        use_attn_scale=False,
        device="cpu",
    )
    for parameter in model.parameters():
        parameter.zero_()
    for weight, name in ((model.embed.W_E, "tokens"), (model.pos_embed.W_pos, "positions")):
        weight[:, place[name]] = torch.eye(len(weight), len(program.values[name]))
    halved = torch.ones(length, 1, model.cfg.d_head)
    halved[0, :, :-length] = 0.5
    raised = 4 * length * STEP
    near = -STEP * ranks(length)
    near[:, 0] += raised
    places = model.pos_embed.W_pos[:, place["positions"]]
    for lookup in heads:
        attn, (query, key, value) = model.blocks[lookup.layer].attn, lookup.reads
        keys, values = (torch.eye(len(program.values[x]), attn.cfg.d_head) for x in (key, value))
        wanted = lookup.table[:-1, :-1].float()
        attn.W_Q[lookup.head, place[query]] = 2 * raised * wanted @ keys
        attn.W_Q[lookup.head, place["positions"], -length:][:length] = near
        attn.W_K[lookup.head, place[key]] = keys
        attn.W_K[lookup.head, place["positions"], -length:] = places.T
        attn.W_V[lookup.head, place[value]] = values
        attn.W_O[lookup.head, :, place[lookup.name]] = values.T
    for mlp in mlps:
        model.blocks[mlp.layer].mlp.b_out[place[mlp.name].start + mlp.default] = 1
    for block, units in zip(model.blocks, neurons):
        block.attn.hook_k.register_forward_pre_hook(lambda _, keys: keys[0] * halved)
        for unit, (mlp, given) in enumerate(units):
            block.mlp.b_in[unit] = 1 - len(given)  # all of them are needed
            for name, value in zip(mlp.reads, given):
                block.mlp.W_in[place[name].start + value, unit] += 1
            outputs = block.mlp.W_out[unit, place[mlp.name]]
            outputs[mlp.default] -= 1
            outputs[mlp.table[tuple(given)]] += 1
    for name, weights in program.weights.items():
        model.unembed.W_U[place[name]] = weights
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
        self.answering = transformer(self.program, self.length)  # gets no hooks
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
        with torch.no_grad():
            answers = self.answering(tokens)[:, list(self.asked)].argmax(-1)
        roles = torch.arange(self.length).expand(n, 1, -1)
        return ri.Batch(tokens, answers, roles).to(device)

    def more(self, model: Any, circuit: Circuit) -> dict[str, Any]:
        """How right the circuit is, and the sets of paths that are needed; and the transformer."""
        batch = self.sample(512, split="test")
        _, cache = model.run_with_cache(batch.inputs)
        printed = self.program.printed

        def share(head: Head, path: RolePath) -> float:
            pattern = cache["pattern", head.layer][:, head.head, path.dest]
            return float((pattern.argmax(-1) == path.src).double().mean())

        @torch.no_grad()
        def losses(paths: Sequence[HeadPath]) -> Tensor:
            def cut(pattern: Tensor, hook: Any) -> None:
                for head, path in paths:
                    if head.layer == hook.layer():
                        pattern[:, head.head, path.dest, path.src] = 0

            hooks = [(lambda name: name.endswith("hook_pattern"), cut)]
            outputs = model.run_with_hooks(batch.inputs, fwd_hooks=hooks)
            return self.example_losses(outputs, batch)[:, 0]

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
        every = (
            HeadPath(head, RolePath(*pair))
            for head, pair in product(heads_of(model), product(range(self.length), repeat=2))
        )
        rises = {path: losses([path]) - bar for path in every if share(*path) >= 0.05}
        needed = {path for path, rise in rises.items() if rise.mean() > 2 * standard_error(rise)}
        return {
            "agrees": f"{right} of {len(replaced)}",
            "as printed": self.says_the_same(printed, batch),
            "own last": self.says_the_same(printed.replace(*OWN_LAST), batch),
            "sets": f"{confirmed} of {len(sets)}",
            "refuted": refuted,
            "alone": f"{sum((path,) in sets for path in needed)} of {len(needed)}",
        }

    def says_the_same(self, printed: str, batch: ri.Batch, examples: int = 64) -> float:
        """How often code like the printed one gives the same answers."""
        names: dict[str, Any] = {}
        words, same = self.program.values["tokens"], 0
        with contextlib.chdir(self.path), contextlib.redirect_stdout(io.StringIO()):
            exec(printed, names)
            for tokens, answers in zip(batch.inputs[:examples].tolist(), batch.targets.tolist()):
                said = names["run"]([words[token] for token in tokens])
                pairs = zip(self.asked, answers)
                same += sum(said[place] == self.program.classes[answer] for place, answer in pairs)
        return same / (examples * len(self.asked))


TITLES = ("hist", "double_hist", "sort", "reverse", "most_freq", "dyck1", "dyck2")
main = command([Printed(title) for title in TITLES])

if __name__ == "__main__":
    main()
