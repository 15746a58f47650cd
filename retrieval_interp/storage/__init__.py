"""Files and folders: checkpoints, run folders, circuit files, each written whole or not at all.

Nothing is pickled.
"""
