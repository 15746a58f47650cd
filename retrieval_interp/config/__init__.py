"""The settings of training runs: model sizes, recipes and named presets.

Frozen dataclasses that are checked on construction; no I/O.
"""
