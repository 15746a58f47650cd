"""Putting a circuit in place of the attention of a hooked model, and taking it away again.

Everything that sets a hook is here; hooks live inside one `with` block.
"""
