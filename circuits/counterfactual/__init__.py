"""Circuits of what keeps its own attention, all other being that on a counterfactual prompt."""
