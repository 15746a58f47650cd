"""Running a model under many circuits without computing anything twice (see `runs`)."""
