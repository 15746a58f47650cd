"""Retrieval in continuous vectors, along a chain or any graph of steps.

The task of https://arxiv.org/abs/2411.12118, sections 3.1, 6 and 7. Nothing here depends on words
or tokenizers.
"""
