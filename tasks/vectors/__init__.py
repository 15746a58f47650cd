"""Retrieval in continuous vectors, along a chain or any graph of steps (sections 3.1, 6 and 7)."""
