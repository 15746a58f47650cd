"""Pictures of circuits: SVG for pages, Plotly figures for notebooks.

Both share one layout and one way to name roles.
"""
