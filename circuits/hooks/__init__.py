"""Putting a circuit in place of a hooked model's attention, and removing it again.

Everything that sets a hook is here; hooks live inside one `with` block.
"""
