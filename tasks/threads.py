"""How the threads of PyTorch wait for each other.

By default the threads of OpenMP spin while they wait. Where another process wants the same cores,
many small steps then take several times as long. OpenMP reads its settings once, when it is loaded
with PyTorch, so this has to come first.
"""

import os


def wait_asleep() -> None:
    """Let OpenMP's threads sleep while they wait, unless OMP_WAIT_POLICY is set.

    Without effect on this process if PyTorch is already loaded; processes that it starts inherit
    the setting. GOMP_SPINCOUNT and KMP_BLOCKTIME, where set, still decide.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
