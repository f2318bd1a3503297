"""Worker processes on this machine."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress

from qkv.database.cluster.scheduler import WorkerDiedError
from qkv.database.cluster.worker import read_message, write_message

__all__ = ["ProcessWorker"]


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
            write_message(self.process.stdin, message)
        except OSError:
            raise WorkerDiedError from None
        return None

    def receive(self, sent: object) -> bytes:
        """Return the next reply; see `Worker.receive`."""
        assert self.process.stdout is not None
        try:
            return read_message(self.process.stdout)
        except (EOFError, OSError):
            raise WorkerDiedError from None

    def merge(self, results: Sequence[object]) -> bytes:
        """Return the merge of replies; see `Worker.merge`."""
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
