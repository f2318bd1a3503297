"""Answer questions to a store over HTTP or as an MCP server; concurrent questions share one scan.

create_app     the ASGI application: POST /ask, /search, /explain; GET /health, /store, /metrics, /openapi.json
ServedStore    a database, and optionally a search index, that switches to new versions of the store
Limits         limits of time, size and concurrency
run_server     serve until the process is told to stop
serve_in_thread    serve during a `with` block
Client         asks a server, with the interface and the answers of `Database`
"""

from qkv.core.extras import lazy_attributes

_HOMES = {
    "Client": "client",
    "Limits": "limits",
    "ServedStore": "served_store",
    "create_app": "app",
    "run_server": "server",
    "serve_in_thread": "server",
}

__all__ = ["Client", "Limits", "ServedStore", "create_app", "run_server", "serve_in_thread"]

_PACKAGES = ("httpx", "prometheus_client", "pyarrow", "starlette", "uvicorn")

__getattr__ = lazy_attributes(__name__, _HOMES, "serving needs", "serve", *_PACKAGES)
