"""Workers that are actors of Ray Core, in a cluster or on this machine."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from qkv.core.extras import require_packages
from qkv.database.cluster.scheduler import WorkerDiedError
from qkv.database.cluster.worker import FragmentWorker

__all__ = ["RayWorker", "connect"]


def connect(address: str | None) -> int:
    """Connect to a cluster of Ray, or start one on this machine, and return its number of processors.

    Args:
        address: the address of a cluster, such as "ray://host:10001"; None: the one that is connected, or a new one.

    Raises:
        MissingPackageError: Ray is not installed.
    """
    require_packages("cluster='ray' needs", "ray", "ray")
    import ray

    if not ray.is_initialized():
        ray.init(address, log_to_driver=False, include_dashboard=False, configure_logging=False)
    return int(ray.cluster_resources().get("CPU", 1))


class RayWorker:
    """An actor that holds one worker."""

    def __init__(self) -> None:
        import ray

        self._actor: Any = ray.remote(num_cpus=1)(FragmentWorker).remote()

    def call(self, message: bytes) -> bytes:
        """Return the reply to a message; see `Worker.call`."""
        import ray

        try:
            return bytes(ray.get(self._actor.run.remote(message)))
        except ray.exceptions.RayActorError:
            raise WorkerDiedError from None

    def close(self) -> None:
        """End the actor."""
        import ray

        with suppress(Exception):
            ray.kill(self._actor)
