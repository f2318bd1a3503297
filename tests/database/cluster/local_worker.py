"""A worker of a cluster in the process of the tests."""

import pickle

from qkv.database.cluster.scheduler import WorkerDiedError
from qkv.database.cluster.worker import FragmentWorker


class LocalWorker:
    """A worker in this process, which dies at the calls that are named."""

    def __init__(self, deaths=None, device=None):
        self.worker, self.deaths = FragmentWorker(device), deaths if deaths is not None else []

    def call(self, message):
        if self.deaths and self.deaths.pop():
            raise WorkerDiedError
        return self.worker.run(message)

    def send(self, message):
        return self.call(message)

    def receive(self, sent):
        return sent

    def merge(self, results):
        return self.call(pickle.dumps(results))

    def fetch(self, result):
        return result

    def close(self):
        pass
