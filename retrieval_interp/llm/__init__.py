"""Asks language models the retrieval problem in words (paper, section 4, figure 2), with Inspect."""
