"""The retrieval problem in words, asked of language models (paper, section 4, figure 2).

Needs the extra [llm]. Importing this package alone does not load Inspect.
"""
