"""The commands: one file each, with what they share in `command`.

Nothing else has a `main`, and nothing imports them.
"""
