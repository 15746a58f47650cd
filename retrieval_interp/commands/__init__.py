"""The commands: one file each, with what they share in `command` and `options`."""
