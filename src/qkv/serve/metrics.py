"""The class `Metrics`, the counters of a server in the format of Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qkv.core.extras import require_packages

if TYPE_CHECKING:
    from qkv.serve.served_store import ServedStore

__all__ = ["Metrics"]

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_QUERIES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 8192)


class Metrics:
    """Counters of requests, queries and scans, in a registry of their own.

    Args:
        served: the store, whose version and waiting requests are shown, and whose scans are counted.
    """

    def __init__(self, served: ServedStore) -> None:
        require_packages("serving needs", "serve", "prometheus_client")
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

        self.registry = CollectorRegistry()
        self.requests = Counter(
            "qkv_requests", "Requests by route and status.", ["route", "status"], registry=self.registry
        )
        self.seconds = Histogram(
            "qkv_request_seconds", "Seconds until a response.", ["route"], registry=self.registry, buckets=_SECONDS
        )
        self.queries = Counter("qkv_queries", "Queries that scans answered.", registry=self.registry)
        self.scans = Histogram("qkv_scan_queries", "Queries per scan.", registry=self.registry, buckets=_QUERIES)
        self.active = Gauge("qkv_active_requests", "Requests being answered or waiting.", registry=self.registry)
        waiting = Gauge("qkv_waiting_requests", "Requests that wait for the next scan.", registry=self.registry)
        waiting.set_function(lambda: len(served.queue))
        version = Gauge("qkv_store_version", "Version of the store that answers.", registry=self.registry)
        version.set_function(lambda: served.version or 0)
        stale = Gauge("qkv_store_stale", "1 if the newest version cannot be opened.", registry=self.registry)
        stale.set_function(lambda: float(bool(served.problem)))
        ProcessCollector(registry=self.registry)
        served.observe = self.observe_scan

    def observe_scan(self, requests: int, queries: int) -> None:
        """Count a scan with its queries."""
        self.queries.inc(queries)
        self.scans.observe(queries)

    def observe_request(self, route: str, status: int, seconds: float) -> None:
        """Count a request."""
        self.requests.labels(route, str(status)).inc()
        self.seconds.labels(route).observe(seconds)

    def text(self) -> tuple[bytes, str]:
        """Return the page of the metrics and its media type."""
        from prometheus_client import generate_latest

        return generate_latest(self.registry), "text/plain; version=0.0.4; charset=utf-8"
