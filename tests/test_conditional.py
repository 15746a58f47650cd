import json
import math
import re
from dataclasses import replace

import pytest
import torch

import retrieval_interp as ri
from retrieval_interp.circuits import discover, parse_circuit, score_circuit
from retrieval_interp.circuits.runs.hook_runs import HookRuns
from retrieval_interp.circuits.runs.parted_runs import make_runs
from retrieval_interp.circuits.runs.role_runs import RoleRuns
from retrieval_interp.commands.train_options import train_options
from retrieval_interp.config.presets import PRESETS
from retrieval_interp.config.recipe import Recipe
from retrieval_interp.storage.checkpoint import load_checkpoint, save_checkpoint
from retrieval_interp.storage.circuit_file import read_circuit
from retrieval_interp.storage.run_folder import RunFolder, read_recipe
from retrieval_interp.tasks import (
    GRAPHS,
    ConditionalRetrievalTask,
    InputError,
    RetrievalGraph,
    RetrievalTask,
    path_graph,
)
from retrieval_interp.tasks.structured import from_data, to_data
from retrieval_interp.training.model import ModelConfig, build_model
from tests.test_model import randomize

TRIPLE = GRAPHS["triple"]
ALL = [
    ConditionalRetrievalTask(chains, graph, dim=4, tables=tables)
    for graph, chains in [(g, 4) for g in GRAPHS.values()]
    + [(RetrievalGraph.parse("a; b; x <- a, b; y <- x; z <- y, a; w <- z, x"), 2)]
    for tables in ("full", "chains")
]
FIBONACCI = RetrievalGraph.parse(
    "n0; n1 <- n0; " + "; ".join(f"n{i} <- n{i - 1}, n{i - 2}" for i in range(2, 60))
)


def ids(task):
    return f"{task.graph.nodes[-1].name}-{task.tables}"


# Examples


@pytest.mark.parametrize("tables", ["full", "chains"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"chains": 3, "steps": 5, "dim": 6, "curriculum": False, "position": "token"},
        {"chains": 2, "steps": 27, "dim": 2, "tokens": "unit", "base": 10.0},
        {"chains": 1, "steps": 1},
    ],
)
def test_on_a_path_it_is_the_retrieval_task(options, tables):
    linear = RetrievalTask(**options)
    options = {name: value for name, value in options.items() if name != "steps"}
    task = ConditionalRetrievalTask(graph=path_graph(linear.steps), tables=tables, **options)
    for split in ("train", "test"):
        ours, theirs = (t.sample(7, seed=3, split=split, start=5) for t in (task, linear))
        for name in ("inputs", "targets", "roles"):
            assert torch.equal(getattr(ours, name), getattr(theirs, name))
        assert task.position_labels(ours, 1) == linear.position_labels(theirs, 1)
    for name in ("n_positions", "d_in", "d_out", "n_targets", "plateau", "tolerance",
                 "role_names", "role_labels", "role_symbols"):  # fmt: skip
        assert getattr(task, name) == getattr(linear, name)
    outputs = torch.randn(7, task.n_positions, task.d_out)
    assert torch.equal(task.example_losses(outputs, ours), linear.example_losses(outputs, theirs))


def test_examples_of_the_retrieval_task_are_those_that_models_were_trained_on():
    batch = RetrievalTask().sample(3, seed=1)
    first = [-0.533797, 1.150265, -1.445313, -0.456705, 1.0, 0.0, 1.0, 0.0]
    torch.testing.assert_close(batch.inputs[2, 0], torch.tensor(first), atol=1e-5, rtol=0)
    assert batch.roles[2, 1].tolist() == [25, 22, 23, 12, 13, 4, 5]


def test_the_papers_example_is_xyz_ay_ax_a():
    task = ConditionalRetrievalTask(chains=1)
    batch = task.sample(2)
    assert task.position_labels(batch, 0) == ["x1", "y1", "z1", "a1", "y1", "a1", "x1", "a1?"]
    # One encoding a statement; s0 is the query, then come (a, x), (a, y) and (x, y, z).
    assert batch.roles[0, 0].tolist() == [7, 5, 6, 3, 4, 0, 1, 2]
    turns = [0, 0, 0, 1, 1, 2, 2, 3]
    expected = [[math.cos(t), math.sin(t), math.cos(t / 100), math.sin(t / 100)] for t in turns]
    torch.testing.assert_close(batch.inputs[0, :, 4:], torch.tensor(expected))


RELATIVES = """Penny Canada, Lily Brazil, Isabelle France, Cathy Kenya, George Italy, Adam Mexico,
Kevin Peru, Ed Laos, Hank Germany, Mike Japan, Jane England, Fred Hungary, Dana Norway,
Olivia Qatar, Bob Denmark, Nancy Argentina; John mother Jane, John sister Olivia, John father Ed,
John brother Mike, Chris mother Penny, Chris sister Dana, Chris father Adam, Chris brother George,
Diana mother Nancy, Diana sister Isabelle, Diana father Hank, Diana brother Bob, Eve mother Lily,
Eve sister Cathy, Eve father Fred, Eve brother Kevin; Doctors brother, Lawyers mother,
Teachers sister, Engineers father; John Doctors, Chris Engineers, Diana Teachers, Eve Lawyers"""
NODES = ("person", "job", "relation", "relative", "country")


def test_full_tables_are_those_of_the_papers_printed_prompt():
    """Appendix A.5, whose order is countries, relatives, relations, jobs and the question."""
    country, relative, relation, job = (
        [line.split() for line in part.split(",")] for part in RELATIVES.split(";")
    )
    value = {tuple(line[:-1]): line[-1] for part in (country, relative, relation, job)
             for line in part}  # fmt: skip
    people = ["John", "Chris", "Diana", "Eve"]
    chains = []
    for person in people:
        of_job = value[person,]
        kin = value[person, value[of_job,]]
        chains.append([person, of_job, value[of_job,], kin, value[kin,]])
    assert chains[3][-1] == "Brazil"  # as the paper says
    # Chains' own symbols first, then what is no chain's: relatives by person and relation, then
    # their countries.
    relations = [chain[2] for chain in chains]
    pairs = [(p, r) for p in range(4) for r in range(4)]
    others = [value[people[p], relations[r]] for p, r in pairs if p != r]
    names = [name for chain in chains for name in chain] + others + [value[o,] for o in others]
    kin = [value[people[p], relations[r]] for p, r in pairs]
    places = [
        *(job.index([chain[0], chain[1]]) for chain in chains),
        *(relation.index([chain[1], chain[2]]) for chain in chains),
        *(relative.index([people[p], relations[r], value[people[p], relations[r]]])
          for p, r in pairs),
        *(country.index([name, value[name,]]) for name in kin),
    ]  # fmt: skip
    task = ConditionalRetrievalTask(graph=GRAPHS["relatives"], dim=2)
    symbols = torch.arange(len(names), dtype=torch.float32)[None, :, None].repeat(1, 1, 2)
    batch = task.arrange(symbols, torch.tensor([places]))
    printed = [names[int(number)] for number in batch.inputs[0, :, 0]]
    assert printed == [w for part in (country, relative, relation, job) for line in part
                       for w in line] + people  # fmt: skip
    answers = [names[int(number)] for number in batch.targets[0, :, -2]]
    assert answers == [chain[-1] for chain in chains]


# Two implementations


def statements(task, tokens):
    """The sequence of one example as tuples of vectors, cut by the definition, by node."""
    counts, found, place = {}, {}, 0
    for node in task.graph.nodes:
        sizes = [counts[name] for name in node.key]
        product = math.prod(sizes) if task.tables == "full" else task.chains
        counts[node.name] = product if node.key else task.chains
    retrieved = [node for node in task.graph.nodes if node.key]
    for node in reversed(retrieved):
        width = len(node.key) + 1
        lines = [
            tokens[place + width * i : place + width * (i + 1)] for i in range(counts[node[0]])
        ]
        found[node.name] = lines
        place += width * counts[node.name]
    given = [node.name for node in task.graph.nodes if not node.key]
    queries = [
        dict(zip(given, tokens[place + len(given) * c : place + len(given) * (c + 1)]))
        for c in range(task.chains)
    ]
    assert place + task.chains * len(given) == len(tokens) == task.n_positions
    return found, queries


def distance(first, second):
    return sum((a - b) ** 2 for a, b in zip(first, second))


def follow(task, tokens, parts=lambda key: range(len(key))):
    """What a reader finds that looks up statements by their nearest keys, or by parts of them.

    Returns:
        For each query and retrieved node all values whose key parts fit equally well.
    """
    found, queries = statements(task, tokens)
    answers = []
    for known in queries:
        values = {}
        for node in task.graph.nodes:
            if not node.key:
                continue
            used = parts(node.key)
            costs = [
                sum(distance(line[i], known[node.key[i]]) for i in used)
                for line in found[node.name]
            ]
            fits = [line[-1] for line, cost in zip(found[node.name], costs) if cost < 1e-9]
            values[node.name] = fits
            own = [sum(distance(x, known[name]) for x, name in zip(line, node.key))
                   for line in found[node.name]]  # fmt: skip
            known = {**known, node.name: found[node.name][own.index(min(own))][-1]}
        answers.append(values)
    return answers


@pytest.mark.parametrize("task", ALL, ids=ids)
def test_following_the_statements_finds_the_targets(task):
    batch = replace(task, position="token").sample(3, seed=4)
    for example in range(3):
        tokens = batch.inputs[example, :, : task.dim].tolist()
        for chain, values in enumerate(follow(task, tokens)):
            assert all(len(fits) == 1 for fits in values.values())
            flat = [number for fits in values.values() for number in fits[0]]
            assert flat == batch.targets[example, chain].tolist()
    last = replace(task, curriculum=False).sample(3, seed=4)
    assert torch.equal(last.inputs[..., : task.dim], batch.inputs[..., : task.dim])
    assert torch.equal(last.targets, batch.targets[..., -task.dim :])


@pytest.mark.parametrize("part", [0, 1])
@pytest.mark.parametrize("name", sorted(GRAPHS))
def test_a_part_of_a_key_is_worth_nothing_where_tables_are_full(name, part):
    """Of what the whole key is looked up by, one part leaves a choice of four, or none."""
    joint = {"triple": 2, "functions": 2, "relatives": 2}[name]  # third of the asked
    for tables, left, loss in (("full", 4, 0.75), ("chains", 1, 0.0)):
        task = ConditionalRetrievalTask(graph=GRAPHS[name], tables=tables)
        batch = task.sample(100, seed=2)
        outputs = torch.zeros(100, task.n_positions, task.d_out)
        read = outputs.unflatten(-1, (task.n_targets, task.dim))
        for example in range(100):
            tokens = batch.inputs[example, :, : task.dim].tolist()
            found = follow(task, tokens, lambda key: [part] if len(key) > 1 else [0])
            for values, s0 in zip(found, batch.roles[example, :, 0]):
                for column, fits in enumerate(values.values()):
                    assert len(fits) == (left if column == joint else 1)
                    read[example, s0, column] = torch.tensor(fits).mean(0)
        losses = task.partial_losses(outputs, batch)
        assert float(losses[joint]) == pytest.approx(loss, abs=0.08)
        assert float(losses.sum() - losses[joint]) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("task", ALL, ids=ids)
def test_roles_hold_the_symbols_of_their_nodes_and_statements_share_an_encoding(task):
    batch = task.sample(5, seed=6)
    held = batch.inputs[torch.arange(5)[:, None, None], batch.roles]
    tokens, encodings = held[..., : task.dim], held[..., task.dim :]
    nodes = [node.name for node in task.graph.nodes]
    seen = {}
    for role, (node, statement) in enumerate(task.graph.roles):
        assert task.role_symbols[role].rstrip("?") == nodes[node]
        torch.testing.assert_close(tokens[:, :, role], seen.setdefault(node, tokens[:, :, role]))
        if nodes[node] in task.asked:
            asked = task.asked.index(nodes[node])
            block = batch.targets[..., asked * task.dim : (asked + 1) * task.dim]
            torch.testing.assert_close(tokens[:, :, role], block)
        first = [r.statement for r in task.graph.roles].index(statement)
        torch.testing.assert_close(encodings[:, :, role], encodings[:, :, first])
    places = batch.inputs[0, :, task.dim :]
    assert len({tuple(row) for row in places.round(decimals=5).tolist()}) == sum(
        len(lines) for lines in statements(task, batch.inputs[0].tolist())[0].values()
    ) + len(batch.roles[0])
    apart = replace(task, position="token").sample(1).inputs[0, :, task.dim :]
    assert len({tuple(row) for row in apart.round(decimals=6).tolist()}) == task.n_positions


def test_statements_with_the_same_key_stand_in_parts_of_their_own():
    """(a, y) always before (a, x), which is all that tells them apart."""
    task = ConditionalRetrievalTask()
    roles = task.sample(300).roles
    x, y, z = (task.role_labels.index(f"{s} of {k}->{s}") for k, s in (("a", "x"), ("a", "y"),
                                                                       ("x,y", "z")))  # fmt: skip
    assert int(roles[:, :, z].max()) < 48 <= int(roles[:, :, y].min())
    assert int(roles[:, :, y].max()) < 56 <= int(roles[:, :, x].min()) < 64
    assert roles[:, :, 0].tolist() == [[64, 65, 66, 67]] * 300
    # Shuffled: each of 16 lines of z, 3 apart, is the first chain's at some time.
    assert roles[:, 0, z].unique().tolist() == list(range(2, 48, 3))


def test_a_query_of_several_symbols_is_read_at_its_last():
    task = ConditionalRetrievalTask(chains=3, graph=GRAPHS["functions"])
    batch = task.sample(4)
    labels = task.position_labels(batch, 0)
    assert labels[-6:] == ["alias1", "letter1?", "alias2", "letter2?", "alias3", "letter3?"]
    assert batch.roles[:, :, :2].tolist() == [[[t - 5, t - 6], [t - 3, t - 4], [t - 1, t - 2]]
                                              for t in [task.n_positions] * 4]  # fmt: skip
    outputs = torch.randn(4, task.n_positions, task.d_out)
    read = outputs[:, [-5, -3, -1]]
    assert torch.equal(task.predictions(outputs), read)
    assert torch.equal(task.predictions(read), read)  # those alone
    outputs[:, [-5, -3, -1]] = batch.targets
    assert float(task.loss(outputs, batch)) == 0.0


def test_symbols_of_no_chain_have_no_number():
    task = ConditionalRetrievalTask(chains=2)
    batch = task.sample(1)
    labels = task.position_labels(batch, 0)
    lines = {" ".join(labels[i : i + 3]) for i in range(0, 12, 3)}
    assert lines == {"x1 y1 z1", "x1 y2 z", "x2 y1 z", "x2 y2 z2"}


def test_the_plateau_is_the_mean_of_the_candidates():
    full = ConditionalRetrievalTask()
    assert full.plateau == pytest.approx((3 / 4 + 3 / 4 + 15 / 16) / 3)
    assert replace(full, tables="chains").plateau == 0.75
    assert replace(full, curriculum=False).plateau == 15 / 16
    relatives = replace(full, graph=GRAPHS["relatives"], tokens="unit")
    assert relatives.plateau == pytest.approx((3 / 4 + 3 / 4 + 15 / 16 + 15 / 16) / 16)
    assert replace(full, chains=1).plateau == 1.0
    batch = full.sample(500)
    means = torch.cat(
        [batch.inputs[:, list(places), :4].mean(1, keepdim=True)
         for places in (range(57, 64, 2), range(49, 56, 2), range(2, 48, 3))], dim=-1
    )  # fmt: skip
    outputs = means.expand(-1, full.n_positions, -1)
    assert float(full.loss(outputs, batch)) == pytest.approx(full.plateau, abs=0.02)
    assert full.partial_losses(outputs, batch).tolist() == pytest.approx(
        [0.75, 0.75, 0.94], abs=0.05
    )


def test_every_example_equals_its_single_draw_and_splits_share_nothing():
    task = ConditionalRetrievalTask(graph=GRAPHS["functions"])
    whole = task.sample(20, seed=9)
    one = task.sample(1, seed=9, start=13)
    for name in ("inputs", "targets", "roles"):
        assert torch.equal(getattr(one, name)[0], getattr(whole, name)[13])
    splits = ("train", "validation", "discovery", "test")
    drawn = [task.sample(20, seed, split=s).inputs[:, 0, 0] for seed in (0, 1) for s in splits]
    assert len(torch.cat(drawn).unique()) == 160


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"chains": 0}, "chains to be an integer of at least 1, found 0"),
        ({"dim": 3}, "an even dim"),
        ({"chains": 100}, "at most 25000 positions in 4 dimensions, found 30500; use fewer chains"),
        ({"chains": 2, "graph": FIBONACCI}, "found [0-9]{13,20}; use"),
        ({"chains": 10**9}, "use fewer chains, a smaller graph or tables 'chains'"),
    ],
)
def test_parameters_out_of_range_are_refused(change, text):
    with pytest.raises(InputError, match=f"^task: .*{text}"):
        ConditionalRetrievalTask(**change)


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("graph", "graph to be a RetrievalGraph, such as GRAPHS['triple'], path_graph(3) or"),
        ("tables", "tables 'full' or 'chains', found 'triple'"),
    ],
)
def test_text_is_no_graph_and_other_tables_are_refused(field, text):
    task = ConditionalRetrievalTask()
    object.__setattr__(task, field, "triple")  # around the type checks of these tests
    with pytest.raises(InputError, match=f"^task: expected {re.escape(text)}"):
        task.__post_init__()


# With the rest


def test_recipes_hold_either_task():
    conditional = Recipe(task=ConditionalRetrievalTask(graph=GRAPHS["functions"], chains=2))
    for recipe in (conditional, Recipe()):
        assert from_data(Recipe, json.loads(json.dumps(to_data(recipe))), "r") == recipe
    data = to_data(conditional)["task"]
    assert data["name"] == "conditional" and data == conditional.task.to_dict()
    assert data["graph"].endswith("value <- function, number")
    assert "name" not in to_data(Recipe())["task"]  # as in older files
    named = from_data(Recipe, {"task": {"name": "retrieval", "steps": 2}}, "r")
    assert named.task == RetrievalTask(steps=2)


@pytest.mark.parametrize(
    ("task", "text"),
    [
        (
            {"name": "words"},
            "r: task: expected the name 'retrieval' or 'conditional' or .*, found 'words'",
        ),
        ({"graph": "triple"}, "r: task: expected the keys chains, steps, .* found 'graph'"),
        ({"name": "conditional", "graph": "a; b <- c"}, "r: task.graph: graph: expected keys of"),
        ({"name": "conditional", "graph": 3}, "r: task.graph: expected text, found"),
        ({"name": "conditional", "tables": "no"}, "r: task.tables: expected 'full' or 'chains'"),
    ],
)
def test_bad_tasks_in_recipes_are_refused_by_key(task, text):
    with pytest.raises(InputError, match=f"^{text}"):
        from_data(Recipe, {"task": task}, "r")


def test_the_command_line_takes_the_task_of_the_preset():
    def parsed(preset, *words):
        options = train_options(["--preset", preset, *words], "retrieval-interp train")
        return options.recipe.task

    assert parsed("small", "--task.steps", "2").steps == 2
    task = parsed("conditional", "--task.graph", "a; x <- a", "--task.tables", "chains")
    assert (str(task.graph), task.tables, task.base) == ("a; x <- a", "chains", 10.0)
    assert parsed("conditional", "--task.graph", "path-3").graph == path_graph(3)
    with pytest.raises(InputError, match="^graph: expected one of triple, functions, r"):
        parsed("conditional", "--task.graph", "tripel")
    with pytest.raises(InputError, match="Unrecognized options: --task.steps"):
        parsed("conditional", "--task.steps", "3")


def test_the_preset_is_the_papers_example():
    recipe = PRESETS["conditional"]
    assert recipe.task == ConditionalRetrievalTask(graph=TRIPLE, base=10.0, tables="chains")
    assert (recipe.model.layers, recipe.model.d_model) == (6, 64)


SMALL = ConditionalRetrievalTask(chains=2, graph=GRAPHS["functions"], dim=2)
SIZES = ModelConfig(layers=2, heads=1, d_model=8)


def test_a_checkpoint_comes_back_with_its_task(tmp_path):
    model = build_model(SIZES, SMALL, seed=3).eval()
    save_checkpoint(tmp_path / "c.safetensors", model, SMALL, SIZES, {})
    loaded = load_checkpoint(tmp_path / "c.safetensors")
    assert loaded.task == SMALL
    inputs = SMALL.sample(2).inputs
    assert torch.equal(loaded.model(inputs), model(inputs))


def test_a_run_of_another_task_is_refused(tmp_path):
    sizes = {"model": SIZES, "examples": 8, "batch": 8}
    RunFolder(tmp_path, Recipe(task=SMALL, **sizes)).close()
    RunFolder(tmp_path, read_recipe(tmp_path)).close()
    for task, text in (
        (RetrievalTask(), "with task.name = retrieval, found one with task.name = conditional"),
        (replace(SMALL, graph=TRIPLE), "with task.graph = a; x <- a; y <- a; z <- x, y, found"),
    ):
        with pytest.raises(InputError, match=text):
            RunFolder(tmp_path, Recipe(task=task, **sizes))


class HighPlateau(ConditionalRetrievalTask):
    """So that an untrained model is searched for a circuit."""

    plateau = 100.0


@pytest.mark.parametrize("tables", ["full", "chains"])
@torch.no_grad()
def test_circuits_are_found_and_scored_unchanged(tables):
    task = HighPlateau(chains=2, graph=SMALL.graph, dim=2, tables=tables)
    model = randomize(build_model(SIZES, task)).eval()
    batch = task.sample(16, split="test")
    runs = make_runs(model, batch, task)
    # Statements of no chain have no role: the general way. Without them the fast one is exact.
    assert isinstance(runs, HookRuns if tables == "full" else RoleRuns)
    lines = ["L0.H0 one-hot s3<-s2 s1<-s1", "L1.H0 s0<-s3"]
    circuit = parse_circuit(lines, task)
    whole = HookRuns(model, batch, circuit)
    read = task.predictions(runs.outputs(circuit))
    torch.testing.assert_close(read, task.predictions(whole.base_outputs), atol=1e-5, rtol=0)
    intact = float(task.loss(model(batch.inputs), batch))
    found = discover(model, task, tolerance=1.5 * intact, examples=32, restarts=1)
    assert found.mechanisms and found.task == task.to_dict()
    score = score_circuit(model, task, found, batch, tolerance=2 * intact, controls=3)
    assert score.baseline_loss == pytest.approx(intact, rel=1e-4)
    assert len(score.heads) == 2


def test_figures_and_tables_name_the_nodes():
    task = ConditionalRetrievalTask()
    circuit = parse_circuit(["L0.H0 s7<-s5"], task)
    drawing = ri.draw_circuit(circuit, 1, range(8), task=task)
    assert "<title>L0.H0 s7&lt;-s5: z of x,y-&gt;z from x of x,y-&gt;z</title>" in drawing
    assert ">a?</text>" in drawing
    assert task.path_label(7, 5) == "z <- x of x,y->z"
    assert task.path_label(0, 4) == "query a <- y of a->y"
    assert task.loss_meaning.startswith(
        "MSE is the mean over all asked components: 0 is perfect, 0.81 "
    )


def test_circuit_files_say_which_graph_they_are_of(tmp_path):
    path = tmp_path / "circuit.json"
    circuit = parse_circuit(["L0.H0 s2<-s1"], ConditionalRetrievalTask())
    path.write_text(circuit.to_json())
    read = read_circuit(path, ConditionalRetrievalTask(chains=2), 2, 1, "it was trained")
    assert read.mechanisms == circuit.mechanisms
    other = ConditionalRetrievalTask(graph=RetrievalGraph.parse("a; y <- a; x <- a; z <- x, y"))
    with pytest.raises(
        InputError, match="a circuit for the graph 'a; y <- a; .* found one for 'a;"
    ):
        read_circuit(path, other, 2, 1, "it was trained")
    path.write_text('{"heads": []}')
    read = read_circuit(path, other, 2, 1, "it was trained")
    assert ri.describe_flow(read, 2, 1).startswith(
        "By information flow along its paths, this circuit cannot deliver y, x or z"
    )
