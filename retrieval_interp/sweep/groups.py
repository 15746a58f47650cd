"""Which cells of a grid train together: seeds of one depth, where common steps are faster.

The rule of `--group auto`, from `benchmarks/seeds.py`:

1. On a CPU a step of a tiny model is mostly the cost of starting operations, which seeds share; a
   larger one is bound by arithmetic. With four seeds, a seed's share of a common step took of its
   own step 0.49 (640 numbers in the residual stream, uncompiled: scale smoke), and compiled 0.47
   (3,584), 0.58 (14,336), 0.67 (28,672), 0.80 (57,344), 0.99 at scale laptop (229,376) and with
   one layer of the full scale. Seeds train together up to `MOST_NUMBERS_ON_CPU` numbers, where that
   is plain: of the scales at smoke alone.
2. On a GPU they train together whatever the size: small models are bound by starting operations
   there, and one process and one compilation serve all seeds of a depth. This is reasoned, not
   measured. Eight seeds of the deepest cell at full scale should keep about 17 GB of activations.
3. At most `MOST_SEEDS` together, and no more than leaves a group for every worker.
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
