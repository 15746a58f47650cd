"""The command line: `retrieval-interp` and what every command shares.

That is options, errors in one line, signals, progress. Nothing heavy is loaded before the options
are read.
"""
