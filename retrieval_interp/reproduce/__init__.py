"""The paper's claims with this project's numbers.

evidence  where our numbers come from: shipped checkpoints and circuits, result files, finished runs
claims    what the paper says, and what the evidence says about it;  table  both, as text and JSON
"""
