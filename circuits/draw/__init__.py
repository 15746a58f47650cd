"""Pictures of circuits, as SVG."""
