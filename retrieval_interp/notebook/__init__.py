"""Interactive circuit discovery: the workbench, and its explorer widget (extra `notebook`)."""
