"""When attention paths appear in training (paper, section 9 and appendix D).

series  what was measured along a run, as data;  watch  measures a model, or along a training run
follow  measures a run folder's checkpoints;  times  when each path appears, and in what order
text  table, JSON and CSV;  curves  figures;  report  HTML
"""
