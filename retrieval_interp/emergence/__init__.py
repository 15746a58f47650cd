"""When attention paths appear in training (paper, section 9 and appendix D).

probe     what one model's paths get and are worth
series    the same at every step of a run, as data
run       from a run folder's checkpoints;  watch  while training
crossing  when a curve first passes a threshold;  times  when each path appears, and what leads
summary   as text, JSON and CSV;  figures  Plotly;  report  HTML
"""
