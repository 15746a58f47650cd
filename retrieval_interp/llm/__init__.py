"""Asks language models the retrieval problem in words (paper, section 4, figure 2).

Needs the extra [llm]; importing this package alone does not load Inspect.
"""
