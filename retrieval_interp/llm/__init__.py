"""Asks language models the retrieval problem in words, with Inspect (section 4, figure 2)."""
