"""Construction of the workers that the argument `cluster` of `Database.open` names."""

from __future__ import annotations

import os
from functools import partial

from qkv.database.cluster.processes import ProcessWorker
from qkv.database.cluster.ray_actors import RayWorker, connect, gpu_share
from qkv.database.cluster.scheduler import Scheduler
from qkv.errors import OptionError
from qkv.store import StorageOptions

__all__ = ["open_cluster"]


def open_cluster(cluster: str, skip: bool = False, storage_options: StorageOptions = None) -> Scheduler:
    """Return a scheduler, which starts its workers at the first query.

    Args:
        cluster: "processes" or "processes:4", worker processes on this machine, by default one per processor; "ray" or
            "ray:4", actors of Ray, by default one per processor of the cluster; or the address of a cluster of Ray,
            "ray://host:10001".
        skip: whether fragments that cannot be read are left out.
        storage_options: settings of the object store of the fragments, which are sent to the workers with each query.

    Raises:
        OptionError: `cluster` is neither of them, or Ray is connected to another address already.
        ServerError: No cluster of Ray answers at the address.
        MissingPackageError: Ray is not installed.
    """
    name, _, rest = cluster.partition(":") if isinstance(cluster, str) else ("", "", "")
    count = int(rest) if rest.isdecimal() and 0 < int(rest) < 10_000 else 0
    if name == "processes" and (count or not rest):
        return Scheduler(ProcessWorker, count or os.cpu_count() or 1, "processes", skip, storage_options)
    if name == "ray" and (count or not rest or rest.startswith("//")):
        processors = connect(cluster if rest.startswith("//") else None)
        workers = count or processors
        return Scheduler(partial(RayWorker, gpu_share(workers)), workers, "actors of Ray", skip, storage_options)
    raise OptionError(
        "cluster must be 'processes', 'ray', one of them with a number of workers such as 'processes:4', or an address "
        f"such as 'ray://host:10001', got {cluster!r}. Omit it to answer in this process."
    )
