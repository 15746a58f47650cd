"""Checkpoints, run folders and circuit files, all written atomically; nothing is pickled."""
