"""When attention paths appear in training (paper, section 9 and appendix D).

series  what was measured along a run, as data;  probe  measures the model of one step
follow  measures a run folder's checkpoints;  watch  measures while training
crossing  when curves pass a threshold, and in what order;  times  when each path appears
text  table, JSON and CSV;  curves  figures;  report  HTML
"""
