"""Circuits on any hooked model: mechanisms, hooks, scores and discovery.

A circuit states what each attention head does, by the roles of positions. The method follows
https://arxiv.org/abs/2411.12118, appendix E.
"""

import retrieval_interp.tasks  # noqa: F401  before PyTorch, as it says how threads wait
from retrieval_interp.circuits.circuit import Circuit as Circuit
from retrieval_interp.circuits.circuit import Head as Head
from retrieval_interp.circuits.circuit import HeadPath as HeadPath
from retrieval_interp.circuits.circuit import RolePath as RolePath
from retrieval_interp.circuits.circuit import parse_circuit as parse_circuit
from retrieval_interp.circuits.circuit import parse_head_path as parse_head_path
from retrieval_interp.circuits.counterfactual.why import why as why
from retrieval_interp.circuits.discovery.alternatives import alternatives as alternatives
from retrieval_interp.circuits.discovery.search import Search as Search
from retrieval_interp.circuits.discovery.search import SearchOptions as SearchOptions
from retrieval_interp.circuits.discovery.search import discover as discover
from retrieval_interp.circuits.hooks import ablated as ablated
from retrieval_interp.circuits.losses import Scorer as Scorer
from retrieval_interp.circuits.means import mean_attention as mean_attention
from retrieval_interp.circuits.mechanisms import Mechanism as Mechanism
from retrieval_interp.circuits.scores.ablations import ablations as ablations
from retrieval_interp.circuits.scores.score import CircuitScore as CircuitScore
from retrieval_interp.circuits.scores.score import score_circuit as score_circuit
