"""The retrieval problem in words, asked of language models (section 4, figure 2)."""
