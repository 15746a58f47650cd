"""Which cells of a grid train together: seeds of one depth, where common steps are faster.

The rule of `--group auto`, from `benchmarks/seeds.py`:

1. On a CPU a step of a tiny model is mostly the cost of starting operations, which seeds share; a
   larger one is bound by arithmetic, and bigger tensors only fall out of its caches. Seeds train
   together up to `MOST_NUMBERS_ON_CPU` numbers in the residual stream of a step.
2. On a GPU every size of the grids' is bound by starting operations or by memory, and one
   compilation serves all seeds: they train together whatever the size. This is reasoned, not
   measured.
3. At most `MOST_SEEDS` together, and no more than leaves a group for every worker.
"""

from collections.abc import Sequence

from retrieval_interp.recipe import Recipe
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
        on_gpu: where the steps are taken.
        cells: how many there are to train.
        workers: how many groups train at once.
    """
    if not on_gpu and numbers(recipe) > MOST_NUMBERS_ON_CPU:
        return 1
    return min(MOST_SEEDS, max(1, cells // workers))


def in_groups(jobs: Sequence[Job], size: int) -> list[list[Job]]:
    """Jobs of one depth, `size` at a time; groups in the order of their first jobs.

    Args:
        jobs: in the order in which they are to start.
        size: most jobs of a group, at least 1.
    """
    place = {job.cell: number for number, job in enumerate(jobs)}
    groups = []
    for layers in {job.layers for job in jobs}:
        alike = [job for job in jobs if job.layers == layers]
        groups += [alike[i : i + size] for i in range(0, len(alike), size)]
    return sorted(groups, key=lambda group: place[group[0].cell])
