"""Information flow: what each position can hold after each layer.

Implements section 5 and appendix B of https://arxiv.org/abs/2411.12118 in pure Python, on sets of
pieces of information; no model is run.
"""

from circuits.flow.bounds import causal_depth as causal_depth
from circuits.flow.bounds import paper_bound as paper_bound
from circuits.flow.bounds import unmasked_depth as unmasked_depth
from circuits.flow.delivery import describe_flow as describe_flow
from circuits.flow.fetches import fetches as fetches
from circuits.flow.simulation import least_depth as least_depth
from circuits.flow.simulation import node_depths as node_depths
from circuits.flow.simulation import simulate as simulate
