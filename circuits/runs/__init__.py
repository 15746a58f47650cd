"""Running a model under many circuits without computing anything twice.

`runs` works on any hooked model and chooses; `role_runs` is much faster, and exact, on plain ones.
All have the same two methods: `base(circuit)` runs a circuit from which others differ little, and
`outputs(circuit, base)` computes what differs.
"""
