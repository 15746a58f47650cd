"""Circuits on any hooked model: mechanisms, hooks, scores and discovery.

A circuit states what each attention head does, by the roles of positions. The method follows
https://arxiv.org/abs/2411.12118, appendix E.
"""

import tasks  # noqa: F401  before PyTorch, as it says how threads wait
from circuits.attribution.estimates import attribute as attribute
from circuits.circuit import Circuit as Circuit
from circuits.circuit import Head as Head
from circuits.circuit import HeadPath as HeadPath
from circuits.circuit import Mechanism as Mechanism
from circuits.circuit import RolePath as RolePath
from circuits.discovery.redundancy import needed_paths as needed_paths
from circuits.discovery.search import discover as discover
from circuits.hooks.ablated import ablated as ablated
from circuits.notation import parse_circuit as parse_circuit
from circuits.notation import parse_head_path as parse_head_path
from circuits.runs.mean_attention import mean_attention as mean_attention
from circuits.scores.circuit_score import CircuitScore as CircuitScore
from circuits.scores.circuit_score import score_circuit as score_circuit
from circuits.scores.enabling import enabled_by as enabled_by
from circuits.scores.hypotheses import ablation_sweep as ablation_sweep
from circuits.scores.scorer import Scorer as Scorer
