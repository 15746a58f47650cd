"""The HookedTransformers that are trained and built here.

The only folder of `circuits` that loads TransformerLens.
"""
