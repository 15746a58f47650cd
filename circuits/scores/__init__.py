"""What circuits, heads and paths are worth: exact losses, never estimates.

A `Scorer` gives the loss of one circuit; everything else here asks it.
"""
