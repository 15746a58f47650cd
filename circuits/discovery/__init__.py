"""Searching for a circuit (paper, appendix E).

Candidate mechanisms, their cost, and the search, which decides by exact losses.
"""
