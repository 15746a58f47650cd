"""The commands: one file each, with what they share in `command` and `options`.

Only `retrieval_interp.__main__`, `ablate` and `train` import them.
"""
