"""Checkpoints, run folders, circuit files, and models by name; nothing is pickled."""
