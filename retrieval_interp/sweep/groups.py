"""x"""
from retrieval_interp.recipe import Recipe


def numbers(recipe: Recipe) -> int:
    return recipe.batch * recipe.task.n_positions * recipe.model.d_model
