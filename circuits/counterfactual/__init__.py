"""Circuits by attention taken from a counterfactual prompt.

A circuit is what keeps its own attention: heads, rows of heads, paths. All other attention is the
intact model's on a prompt of the same length that asks something else.
"""
