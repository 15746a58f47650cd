"""When attention paths appear in training (paper, section 9 and appendix D).

probe     how much attention the paths of one model get, and what each is worth
series    the same at every step of a run, as data
follow    from a run folder's checkpoints;  watch  while training
crossing  when curves pass a threshold, and in what order;  times  when each path appears
text      tables, JSON and CSV;  curves  Plotly figures;  report  HTML
"""
