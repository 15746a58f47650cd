"""Grids of training runs, cell by cell, on one machine or many (paper, section 7).

scales  names and sizes;  grid  which cells there are;  cells  what one does, and the loop over them
ray_cluster  cells on many machines;  folder  what is kept;  findings  the tables
"""
