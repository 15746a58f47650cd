"""Retrieval in words: the five prompt formulations, and tasks for models that read tokens.

What is printed is in `prompts`; what a language model is asked, and its loss, is beside it.
"""
