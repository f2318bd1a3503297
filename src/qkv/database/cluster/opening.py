"""Construction of the workers that the argument `cluster` of `Database.open` names."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from qkv.core.extras import require_packages
from qkv.core.printable import first_line
from qkv.database.cluster.scheduler import LostResultError, Scheduler, WorkerDiedError
from qkv.database.cluster.task import merge_replies
from qkv.database.cluster.worker import FragmentWorker
from qkv.errors import OptionError, ServerError
from qkv.store import StorageOptions

_GPU_SECONDS = 30.0
"""Time for which an actor waits for its share of a GPU, which another program may have taken."""


def connect(address: str | None) -> int:
    """Connect to a cluster of Ray, or start one on this machine, and return its number of processors.

    Args:
        address: the address of a cluster, such as "ray://host:10001"; None: the one that is connected, or a new one.

    Raises:
        MissingPackageError: Ray is not installed.
        OptionError: Ray is connected to another address already.
        ServerError: No cluster answers at the address.
    """
    require_packages("cluster='ray' needs", "ray", "ray")
    import ray

    if ray.is_initialized():
        if address is not None and address.rstrip("/") != (connected := _connected_address()):
            raise OptionError(
                f"cluster must be the address to which Ray is connected, {connected!r}, got {address!r}. Use "
                "cluster='ray', or call ray.shutdown() first."
            )
    else:
        try:
            ray.init(address, log_to_driver=False, include_dashboard=False, configure_logging=False)
        except (ConnectionError, TimeoutError) as error:
            raise ServerError(
                f"no cluster of Ray answers at {address!r}: {first_line(error)}. Check the address, or "
                "use cluster='ray' for a cluster on this machine."
            ) from None
    return int(ray.cluster_resources().get("CPU", 1))


def gpu_share(workers: int) -> float:
    """Return the share of a GPU of each of some workers, so that all of them fit on the free GPUs of the cluster.

    The share is 0 if Ray has no free GPU: an actor that asks for one would wait until there is one.
    """
    import ray

    gpus = int(ray.available_resources().get("GPU", 0))
    return 1 / -(-workers // gpus) if gpus else 0.0


def _connected_address() -> str:
    """Return the address to which Ray is connected: "ray://host:10001", or that of the cluster of this process."""
    import ray
    from ray.util import client

    if client.ray.is_connected():
        # Ray has no public name for it.
        host = getattr(getattr(client.ray.get_context(), "client_worker", None), "_conn_str", "")
        return f"ray://{host}"
    return str(ray.get_runtime_context().gcs_address)


class RayWorker:
    """An actor that holds one worker. Its results stay where it runs, and other actors fetch them from there.

    Args:
        gpus: the share of a GPU that Ray reserves for it, from 0 to 1. If others hold the GPUs for too long, the actor
            is started without one.
    """

    def __init__(self, gpus: float = 0.0) -> None:
        import ray

        self._actor = ray.remote(num_cpus=1, num_gpus=gpus)(_Actor).remote()
        self._process_id = self._actor.process_id.remote()
        if gpus and not ray.wait([self._process_id], timeout=_GPU_SECONDS)[0]:
            self.close()
            self._actor = ray.remote(num_cpus=1)(_Actor).remote()
            self._process_id = self._actor.process_id.remote()

    @property
    def process_id(self) -> int:
        """The id of the process on its machine; 0 if it has not started or has died."""
        import ray

        with suppress(ray.exceptions.RayError):
            return int(ray.get(self._process_id, timeout=0))
        return 0

    def call(self, message: bytes) -> object:
        """Return a reference to the reply to a message; see `Worker.call`."""
        return self._result(self._actor.run, [message])

    def send(self, message: bytes) -> object:
        """Return a reference to the reply to a message, before there is one; see `Worker.send`."""
        return self._actor.reply.remote(message)

    def receive(self, sent: object) -> bytes:
        """Return the reply, which is sent back with the result of the call if it is small; see `Worker.receive`."""
        import ray

        with _worker_errors():
            return bytes(ray.get(sent))

    def merge(self, results: Sequence[object]) -> object:
        """Return a reference to the merge of replies; see `Worker.merge`."""
        here = [result for result in results if isinstance(result, bytes)]
        there = [result for result in results if not isinstance(result, bytes)]
        return self._result(self._actor.merge, [here, *there])

    def fetch(self, result: object) -> bytes:
        """Return the reply of a reference; see `Worker.fetch`."""
        import ray

        if isinstance(result, bytes):
            return result
        with _worker_errors(LostResultError):
            return bytes(ray.get(result))

    def close(self) -> None:
        """End the actor."""
        import ray

        with suppress(Exception):
            ray.kill(self._actor)

    def _result(self, method: Any, arguments: Sequence[object]) -> object:
        """Run a method of the actor, and return a reference to its result."""
        import ray

        done, result = method.options(num_returns=2).remote(*arguments)
        with _worker_errors():
            ray.get(done)
        return result


@contextmanager
def _worker_errors(died: type[Exception] = WorkerDiedError) -> Iterator[None]:
    """Raise the errors of Ray as those of a `Worker`, and `died` if the actor has died."""
    import ray

    try:
        yield
    except ray.exceptions.RayActorError:
        raise died from None
    except ray.exceptions.ObjectLostError:
        raise LostResultError from None
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, ray.exceptions.ObjectLostError):
            raise LostResultError from None
        raise


class _Actor:
    """The methods of an actor. `run` and `merge` return None, when they have finished, and their result."""

    def __init__(self) -> None:
        self.worker = FragmentWorker(_reserved_gpu())

    def process_id(self) -> int:
        """Return the id of the process."""
        return os.getpid()

    def reserved_gpus(self) -> list[str]:
        """Return the ids of the GPUs of which Ray reserved a share for the actor."""
        import ray

        return [str(gpu) for gpu in ray.get_gpu_ids()]

    def reply(self, message: bytes) -> bytes:
        """Return the reply to a message; see `FragmentWorker.run`."""
        return self.worker.run(message)

    def run(self, message: bytes) -> tuple[None, bytes]:
        """Return the reply to a message; see `FragmentWorker.run`."""
        return None, self.worker.run(message)

    def merge(self, here: Sequence[bytes], *there: bytes) -> tuple[None, bytes]:
        """Return replies merged into one; Ray has fetched those that were references."""
        return None, pickle.dumps(merge_replies([*here, *there]))


def _reserved_gpu() -> str | None:
    """Return the device of the GPU that Ray reserved for this actor; None without one, or if PyTorch cannot use it."""
    import ray

    if not ray.get_gpu_ids():
        return None
    try:
        import torch
    except ImportError:
        return None
    return "cuda" if torch.cuda.is_available() else None  # Ray shows the actor no other GPU


class ProcessWorker:
    """A worker process, which ends when this process does."""

    def __init__(self) -> None:
        # A new interpreter, not a fork: readers of Lance do not survive a fork.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        command = [sys.executable, "-m", "qkv.database.cluster.worker"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)

    @property
    def process_id(self) -> int:
        """The id of the process."""
        return self.process.pid

    def call(self, message: bytes) -> bytes:
        """Return the reply to a message; see `Worker.call`."""
        return self.receive(self.send(message))

    def send(self, message: bytes) -> object:
        """Write a message, which the worker reads before it replies; see `Worker.send`."""
        assert self.process.stdin is not None
        try:
            pickle.dump(message, self.process.stdin)
            self.process.stdin.flush()
        except OSError:
            raise WorkerDiedError from None
        return None

    def receive(self, sent: object) -> bytes:
        """Return the next reply; see `Worker.receive`."""
        assert self.process.stdout is not None
        try:
            return bytes(pickle.load(self.process.stdout))
        except (EOFError, OSError, pickle.UnpicklingError):
            raise WorkerDiedError from None

    def merge(self, results: Sequence[object]) -> bytes:
        """Return replies merged into one; see `Worker.merge`."""
        return self.call(pickle.dumps(results))

    def fetch(self, result: object) -> bytes:
        """Return a reply, which is the result itself; see `Worker.fetch`."""
        assert isinstance(result, bytes)
        return result

    def close(self) -> None:
        """End the process."""
        for stream in (self.process.stdin, self.process.stdout):
            with suppress(OSError):
                if stream is not None:
                    stream.close()
        self.process.kill()
        self.process.wait()


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
