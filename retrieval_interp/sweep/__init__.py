"""Grids of training runs, cell by cell, on one machine or many (paper, section 7).

grid       which cells there are, at which scale;  cells  what one cell does and leaves behind
executors  cells as processes of this machine;  ray_executor  as tasks of a Ray cluster
folder     what is kept, and what is done already;  progress  the bar;  summary  the tables
"""
