"""Models whose circuit is known, built from matching heads: the ground truth for discovery."""
