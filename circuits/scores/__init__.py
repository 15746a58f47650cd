"""Scores of circuits, heads and paths: exact losses.

They extend appendix E of https://arxiv.org/abs/2411.12118. A `Scorer` gives the loss of one
circuit; everything else here is built on it.
"""
