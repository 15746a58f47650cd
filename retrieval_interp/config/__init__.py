"""What a training run is made of: sizes of a model, recipes, and the presets by name.

Frozen dataclasses, checked on construction, without I/O.
"""
