"""Pictures of circuits as SVG: `layout` decides, `svg` draws."""
