"""The command line: `retrieval-interp`, and what all commands share.

Commands share options, one-line errors, signals and progress bars. Nothing heavy is loaded before
the options are read.
"""
