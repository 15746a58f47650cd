"""Which cells of a grid train together: seeds of one depth, where common steps are faster.

The rule of `--group auto`, measured with `benchmarks/seeds.py` (docs/speed.md):

1. On a CPU, a step of a tiny model is mostly the cost of starting operations, which seeds share; a
   larger one is bound by arithmetic. With four seeds, one seed's share of a common step took this
   fraction of its own step, by numbers in the residual stream: 0.49 (640, scale smoke, uncompiled),
   0.47 (3,584), 0.58 (14,336), 0.67 (28,672), 0.80 (57,344), 0.99 (229,376, scale laptop; also one
   layer at full scale). Seeds train together up to `MOST_NUMBERS_ON_CPU`, which of the scales holds
   for smoke only.
2. On a GPU they always train together: small models are bound by starting operations, and one
   process and one compilation serve all seeds of a depth. This is estimated, not measured. Eight
   seeds of the deepest cell at full scale should keep about 17 GB of activations.
3. At most `MOST_SEEDS` train together, and only as many as leave a group for every worker.
"""

from collections.abc import Sequence

from retrieval_interp.config.recipe import Recipe
from retrieval_interp.sweep.cells import Job

MOST_SEEDS = 8
MOST_NUMBERS_ON_CPU = 2**15


def numbers(recipe: Recipe) -> int:
    """Numbers in the residual stream of a step: batch x positions x d_model."""
    return recipe.batch * recipe.task.n_positions * recipe.model.d_model


def seeds_together(recipe: Recipe, on_gpu: bool, cells: int, workers: int) -> int:
    """How many seeds to train together, by the rule above.

    Args:
        recipe: of any cell.
        on_gpu: whether cells train on a GPU.
        cells: number of cells to train.
        workers: number of groups that train at once.
    """
    if not on_gpu and numbers(recipe) > MOST_NUMBERS_ON_CPU:
        return 1
    return min(MOST_SEEDS, max(1, cells // workers))


def in_groups(jobs: Sequence[Job], size: int) -> list[list[Job]]:
    """Groups of jobs of one depth, in the order of their first jobs.

    Args:
        jobs: in the order in which they are to start.
        size: maximum number of jobs in a group, at least 1.
    """
    groups: list[list[Job]] = []
    open_groups: dict[int, list[Job]] = {}
    for job in jobs:
        group = open_groups.get(job.layers)
        if group is None or len(group) == size:
            group = open_groups[job.layers] = []
            groups.append(group)
        group.append(job)
    return groups
