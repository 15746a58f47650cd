"""Searching for a circuit: appendix E of https://arxiv.org/abs/2411.12118, automated.

Candidate mechanisms, their cost, and the search, which decides by exact losses.
"""
