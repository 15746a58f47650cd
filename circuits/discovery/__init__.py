"""The search for a circuit (appendix E of arXiv:2411.12118); begin at `search`."""
