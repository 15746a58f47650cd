"""What the paper reports of its circuits, in appendix E."""

SUFFICIENT = 0.05  # MSE with all heads replaced
PATHS = (0.17, 0.89)  # MSE without one more path
FIRST_LAYER = (0.05, 0.10)  # the same in the first useful layer


def range_text(within: tuple[float, float]) -> str:
    """`0.17 to 0.89`."""
    return f"{within[0]:g} to {within[1]:g}"
