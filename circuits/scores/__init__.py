"""Scores of circuits, heads and paths: exact losses (arXiv:2411.12118, appendix E)."""
