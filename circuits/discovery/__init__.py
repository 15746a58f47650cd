"""Searching for a circuit: appendix E of https://arxiv.org/abs/2411.12118, automated."""
