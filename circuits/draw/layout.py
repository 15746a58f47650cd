"""Where everything stands in a picture of a circuit."""

from tasks import Batch


def role_order(batch: Batch) -> list[int]:
    """Roles in the order in which they stand in the sequence, earliest first."""
    means = batch.roles.double().mean(dim=(0, 1)).tolist()
    return sorted(range(len(means)), key=lambda role: means[role])
