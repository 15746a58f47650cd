"""Which attention paths of a small transformer do the work.

>>> import retrieval_interp as ri

Names are loaded when they are first used, so that commands start without the heavy libraries.
"""

from typing import TYPE_CHECKING

from tasks.lazy_names import lazy_names

if TYPE_CHECKING:
    from circuits import Circuit as Circuit
    from circuits import CircuitScore as CircuitScore
    from circuits import Head as Head
    from circuits import HeadPath as HeadPath
    from circuits import Mechanism as Mechanism
    from circuits import RolePath as RolePath
    from circuits import ablated as ablated
    from circuits import ablation_sweep as ablation_sweep
    from circuits import discover as discover
    from circuits import enabled_by as enabled_by
    from circuits import mean_attention as mean_attention
    from circuits import parse_circuit as parse_circuit
    from circuits import parse_head_path as parse_head_path
    from circuits import score_circuit as score_circuit
    from circuits.circuit_flow import describe_flow as describe_flow
    from circuits.compile import compile_circuit as compile_circuit
    from circuits.figure import circuit_diff as circuit_diff
    from circuits.figure import circuit_figure as circuit_figure
    from circuits.figure import circuit_text as circuit_text
    from retrieval_interp.attention_views import attention_view as attention_view
    from retrieval_interp.checkpoint import Checkpoint as Checkpoint
    from retrieval_interp.checkpoint import load_checkpoint as load_checkpoint
    from retrieval_interp.checkpoint import save_checkpoint as save_checkpoint
    from retrieval_interp.checkpoint import shipped_checkpoints as shipped_checkpoints
    from retrieval_interp.commands import progress_bar as progress_bar
    from retrieval_interp.emergence.crossing import Crossing as Crossing
    from retrieval_interp.emergence.figures import attention_figure as attention_figure
    from retrieval_interp.emergence.figures import crossing_figure as crossing_figure
    from retrieval_interp.emergence.figures import loss_figure as loss_figure
    from retrieval_interp.emergence.figures import necessity_figure as necessity_figure
    from retrieval_interp.emergence.run import follow_run as follow_run
    from retrieval_interp.emergence.series import Series as Series
    from retrieval_interp.emergence.series import read_series as read_series
    from retrieval_interp.emergence.summary import emergence_table as emergence_table
    from retrieval_interp.emergence.times import path_emergence as path_emergence
    from retrieval_interp.emergence.watch import Watch as Watch
    from retrieval_interp.model import ModelConfig as ModelConfig
    from retrieval_interp.model import build_model as build_model
    from retrieval_interp.page import View as View
    from retrieval_interp.presets import PRESETS as PRESETS
    from retrieval_interp.recipe import Recipe as Recipe
    from retrieval_interp.report import render_report as render_report
    from retrieval_interp.summary import score_table as score_table
    from retrieval_interp.summary import verdict as verdict
    from retrieval_interp.training import train_model as train_model
    from retrieval_interp.workbench import Workbench as Workbench
    from retrieval_interp.workbench import open as open
    from tasks import GRAPHS as GRAPHS
    from tasks import Batch as Batch
    from tasks import ConditionalRetrievalTask as ConditionalRetrievalTask
    from tasks import EquationsTask as EquationsTask
    from tasks import InputError as InputError
    from tasks import PromptTask as PromptTask
    from tasks import RetrievalGraph as RetrievalGraph
    from tasks import RetrievalTask as RetrievalTask
    from tasks import Task as Task
    from tasks.prompts import EquationsPrompt as EquationsPrompt
    from tasks.prompts import FunctionsPrompt as FunctionsPrompt
    from tasks.prompts import KingdomsPrompt as KingdomsPrompt
    from tasks.prompts import LivesWithPrompt as LivesWithPrompt
    from tasks.prompts import RelativesPrompt as RelativesPrompt

_HOMES = {
    "circuits": (
        "Circuit",
        "CircuitScore",
        "Head",
        "HeadPath",
        "Mechanism",
        "RolePath",
        "ablated",
        "discover",
        "enabled_by",
        "mean_attention",
        "parse_circuit",
        "parse_head_path",
        "score_circuit",
        "ablation_sweep",
    ),
    "circuits.compile": ("compile_circuit",),
    "circuits.figure": ("circuit_diff", "circuit_figure", "circuit_text"),
    "circuits.circuit_flow": ("describe_flow",),
    "retrieval_interp.attention_views": ("attention_view",),
    "retrieval_interp.checkpoint": (
        "Checkpoint",
        "load_checkpoint",
        "save_checkpoint",
        "shipped_checkpoints",
    ),
    "retrieval_interp.commands": ("progress_bar",),
    "retrieval_interp.emergence.crossing": ("Crossing",),
    "retrieval_interp.emergence.figures": (
        "attention_figure",
        "crossing_figure",
        "loss_figure",
        "necessity_figure",
    ),
    "retrieval_interp.emergence.run": ("follow_run",),
    "retrieval_interp.emergence.series": ("Series", "read_series"),
    "retrieval_interp.emergence.summary": ("emergence_table",),
    "retrieval_interp.emergence.times": ("path_emergence",),
    "retrieval_interp.model": ("ModelConfig", "build_model"),
    "retrieval_interp.page": ("View",),
    "retrieval_interp.presets": ("PRESETS",),
    "retrieval_interp.recipe": ("Recipe",),
    "retrieval_interp.report": ("render_report",),
    "retrieval_interp.summary": ("score_table", "verdict"),
    "retrieval_interp.training": ("train_model",),
    "retrieval_interp.emergence.watch": ("Watch",),
    "retrieval_interp.workbench": ("Workbench", "open"),
    "tasks": (
        "GRAPHS",
        "Batch",
        "ConditionalRetrievalTask",
        "EquationsTask",
        "InputError",
        "PromptTask",
        "RetrievalGraph",
        "RetrievalTask",
        "Task",
    ),
    "tasks.prompts": (
        "EquationsPrompt",
        "FunctionsPrompt",
        "KingdomsPrompt",
        "LivesWithPrompt",
        "RelativesPrompt",
    ),
}
__getattr__, __all__ = lazy_names(__name__, _HOMES)


def __dir__() -> list[str]:
    return __all__
