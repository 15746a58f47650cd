"""Finding a circuit without being told one (paper, appendix E).

What may be proposed, what it costs, and the search that decides by exact losses.
"""
