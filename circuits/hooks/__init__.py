"""Putting a circuit in place of a hooked model's attention, and removing it again.

Hooks live inside one `with` block.
"""
