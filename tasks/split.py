"""The splits of a task, which never share an example."""

from typing import Literal

Split = Literal["train", "validation", "discovery", "test"]
