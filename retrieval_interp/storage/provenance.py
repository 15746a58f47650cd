"""Where a result file comes from."""

import importlib.metadata
from datetime import datetime, timezone
from typing import Any


def provenance(command: str) -> dict[str, Any]:
    """Where a file comes from: the command, the versions and the date.

    Args:
        command: what was typed.
    """
    return {
        "command": command,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "versions": {
            name: importlib.metadata.version(name)
            for name in ("retrieval-interp", "torch", "transformer-lens")
        },
    }
