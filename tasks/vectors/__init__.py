"""Retrieval in continuous vectors: along a chain, or along any graph of steps.

Nothing here depends on words or tokenizers.
"""
