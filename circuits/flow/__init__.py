"""Information flow: what each position can hold after each layer.

Implements section 5 and appendix B of https://arxiv.org/abs/2411.12118 in pure Python, on sets of
pieces of information; no model is run.
"""

from retrieval_interp.circuits.flow.bounds import causal_depth as causal_depth
from retrieval_interp.circuits.flow.bounds import paper_bound as paper_bound
from retrieval_interp.circuits.flow.bounds import unmasked_depth as unmasked_depth
from retrieval_interp.circuits.flow.delivery import describe_flow as describe_flow
from retrieval_interp.circuits.flow.fetches import fetches as fetches
from retrieval_interp.circuits.flow.simulation import least_depth as least_depth
from retrieval_interp.circuits.flow.simulation import node_depths as node_depths
from retrieval_interp.circuits.flow.simulation import simulate as simulate
