"""Running a model under many circuits without computing anything twice.

`hook_runs` works on any hooked model; `role_runs` is much faster, and exact, on plain ones;
`make_runs` chooses, and runs a batch in parts. All have the same two methods: `base(circuit)` runs
a circuit from which others differ little, and `outputs(circuit, base)` computes what differs.
"""
