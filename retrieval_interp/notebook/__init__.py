"""Interactive circuit discovery: the workbench, and the explorer on top of it.

The explorer needs the extra `notebook`.
"""
