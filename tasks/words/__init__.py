"""Retrieval in words: the five prompt formulations, and tasks for models that read tokens."""
