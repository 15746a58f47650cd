"""Information flow: what each position can hold after each layer (paper, section 5, appendix B).

Pure Python on sets of pieces; no model is run.
"""
