"""Building models and training them.

The loop knows nothing of what is measured on the way; watchers are called back.
"""
