"""Estimated effects of replaced attention, for all hypotheses from one forward and backward pass.

Estimates say which hypotheses to score; `circuits.scores` decides, exactly.
"""
