"""Running a model under many circuits without computing anything twice.

`hook_runs` works on any hooked model; `role_runs` is exact and much faster on plain ones.
"""
