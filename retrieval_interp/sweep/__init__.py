"""Grids of training runs, cell by cell, on one machine or many (paper, section 7).

scales  names and sizes;  grid  which cells there are;  cells  what one does and leaves behind
running  the loop over cells, in processes here;  ray_cluster  on many machines
folder  what is kept, and what is done already;  findings  the tables
"""
