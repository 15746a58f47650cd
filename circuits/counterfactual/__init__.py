"""Circuits of what heads keep, all other being what they write on a counterfactual prompt."""
