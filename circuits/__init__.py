"""What is claimed: mechanisms, circuits, hooks and scores, on any hooked model."""

from circuits.ablation import ablated as ablated
from circuits.ablation_sweep import ablation_sweep as ablation_sweep
from circuits.attention import mean_attention as mean_attention
from circuits.circuit import Circuit as Circuit
from circuits.circuit import Head as Head
from circuits.circuit import HeadPath as HeadPath
from circuits.circuit import parse_head_path as parse_head_path
from circuits.discovery import discover as discover
from circuits.enabling import enabled_by as enabled_by
from circuits.evaluation import CircuitScore as CircuitScore
from circuits.evaluation import score_circuit as score_circuit
from circuits.mechanisms import Mechanism as Mechanism
from circuits.mechanisms import RolePath as RolePath
from circuits.scoring import Scorer as Scorer
from circuits.supposing import parse_circuit as parse_circuit
