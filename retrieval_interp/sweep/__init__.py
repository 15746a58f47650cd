"""Grids of training runs, cell by cell, on one machine or many (paper, section 7).

scales     names and sizes;  grid  which cells there are;  cells  what one does and leaves behind
groups     seeds that train together;  local  processes of this machine;  ray_cluster  of many
folder     what is kept, and what is done already;  progress  the bar;  findings  the tables
"""
