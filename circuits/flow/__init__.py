"""Information flow: how deep a model must be, and what a circuit can deliver; no model is run."""

from retrieval_interp.circuits.flow.bounds import causal_depth as causal_depth
from retrieval_interp.circuits.flow.bounds import least_depth as least_depth
from retrieval_interp.circuits.flow.bounds import node_depths as node_depths
from retrieval_interp.circuits.flow.bounds import paper_bound as paper_bound
from retrieval_interp.circuits.flow.bounds import simulate as simulate
from retrieval_interp.circuits.flow.bounds import unmasked_depth as unmasked_depth
from retrieval_interp.circuits.flow.delivery import describe_flow as describe_flow
