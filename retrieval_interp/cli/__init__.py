"""What every command shares: options, errors in one line, interrupts, progress.

Nothing heavy is loaded before the options are read.
"""
