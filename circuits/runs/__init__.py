"""Running a model under many circuits without computing anything twice.

`hook_runs` works on any hooked model; `role_runs` is much faster, and exact, on plain ones;
`parted_runs` chooses, and runs a batch in parts.
"""
