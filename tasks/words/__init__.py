"""Retrieval in words: the five prompt formulations, and tasks for models that read tokens.

`prompts` writes the text; the modules beside it turn it into tasks with a loss.
"""
