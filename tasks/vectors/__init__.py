"""Retrieval in continuous vectors: along a chain, or along any graph of steps.

Nothing here knows of words or tokenizers.
"""
