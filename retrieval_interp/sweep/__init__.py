"""Grids of training runs, cell by cell, on one machine or many (paper, section 7)."""
