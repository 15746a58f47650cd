"""Pictures of circuits, as SVG for pages and notebooks."""
