"""Information flow: what each position can hold after each layer (paper, section 5, appendix B).

Pure Python on sets of pieces; no model is run.
"""

from circuits.flow.bounds import causal_depth as causal_depth
from circuits.flow.bounds import paper_bound as paper_bound
from circuits.flow.bounds import unmasked_depth as unmasked_depth
from circuits.flow.delivery import describe_flow as describe_flow
from circuits.flow.simulation import least_depth as least_depth
from circuits.flow.simulation import node_depths as node_depths
from circuits.flow.simulation import simulate as simulate
