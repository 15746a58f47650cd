"""Models whose circuit is known, built from rules: the ground truth for discovery.

Rules are traced by role, then written into weights.
"""
