"""Find the heads, rows and paths that an answer needs, by patching all others (`why`)."""
