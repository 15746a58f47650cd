"""The explorer: a page on which circuits are built by clicking, in Jupyter or a browser."""
