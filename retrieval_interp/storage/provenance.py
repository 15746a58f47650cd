"""Where a result file comes from."""

import importlib.metadata
from datetime import datetime, timezone
from typing import Any


def provenance(command: str) -> dict[str, Any]:
    """The command as typed, the date, and the versions of the main libraries."""
    return {
        "command": command,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "versions": {
            name: importlib.metadata.version(name)
            for name in ("retrieval-interp", "torch", "transformer-lens")
        },
    }
