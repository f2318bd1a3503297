"""The command `qkv serve`, which answers questions to a store over HTTP or as an MCP server."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from qkv.cli.shared_options import KeyColumns, Rule, ValueColumn, argument, check_rules, flag, option
from qkv.errors import DataError, OptionError

if TYPE_CHECKING:
    from qkv.search.index import Index
    from qkv.serve.served_store import ServedStore


@dataclass(frozen=True, kw_only=True)
class ServeCommand:
    """The arguments and options of `qkv serve`."""

    store: Annotated[str | None, argument("STORE", "Store, or search index, to serve.")] = None
    index: Annotated[str | None, option("FOLDER", "Search index to serve beside the store, by POST /search.")] = None
    key: KeyColumns = ""
    value: ValueColumn = ""
    memory: Annotated[str, option("SIZE", "Memory limit, beyond which the store is read block by block.")] = "512 MiB"
    host: Annotated[str, option("ADDRESS", "Address to listen on; another machine's access needs a token.")] = (
        "127.0.0.1"
    )
    port: Annotated[int, option("N", "Port to listen on; 0: any free port.")] = 8000
    token_file: Annotated[
        str | None, option("FILE", "File with the token that requests must have; default: $QKV_TOKEN.")
    ] = None
    max_body: Annotated[str, option("SIZE", "Largest request body (413).")] = "8 MiB"
    max_queries: Annotated[int, option("N", "Most queries of a request (422).", min=1)] = 8192
    max_rows: Annotated[int, option("N", "Most rows of evidence per query, or passages (422).", min=1)] = 1000
    max_requests: Annotated[int, option("N", "Most requests at the same time (429).", min=1)] = 256
    timeout: Annotated[float, option("SECONDS", "Longest time for an answer (504).")] = 60.0
    refresh: Annotated[float, option("SECONDS", "Time between looks for a new version; 0: never.", min=0.0)] = 1.0
    mcp: Annotated[bool, flag("--mcp", "Speak the Model Context Protocol on standard input and output instead.")] = (
        False
    )


_RULES = (
    Rule(
        lambda serve: serve.store is None,
        "STORE must be given. Name a store made by qkv store create, or an index made by qkv search.",
        DataError,
    ),
    Rule(
        lambda serve: serve.mcp and (serve.host != "127.0.0.1" or serve.token_file is not None),
        "--mcp must be given without --host and --token-file, as it does not listen. Omit them.",
    ),
)


def serve(options: ServeCommand) -> None:
    """Answer questions to a store over HTTP, with the rows that support each answer.

    Questions of many clients that wait at the same time are answered by one scan of the rows. A new version of the
    store, such as that of qkv store append, is used as soon as it is ready; each answer names its version. SIGTERM and
    Ctrl-C finish the running requests.

    \b
    Examples:
      qkv serve people.qkv
      curl localhost:8000/ask -H 'Content-Type: application/json' -d '{"query": "Jon Smiht"}'
      curl localhost:8000/ask -H 'Content-Type: application/json' -d '{"queries": ["Li", "Hu"], "where": "income > 0"}'
      qkv serve people.qkv --index notes.index --port 9000
      QKV_TOKEN=$(openssl rand -hex 32) qkv serve people.qkv --host 0.0.0.0
      qkv serve people.qkv --token-file token.txt --max-requests 64 --timeout 10
      qkv serve people.qkv --mcp

    Routes: POST /ask, /explain and /search; GET /health, /store, /metrics (Prometheus) and /openapi.json. Bodies are
    JSON, or Arrow streams by Content-Type and Accept application/vnd.apache.arrow.stream. In Python,
    qkv.serve.Client("http://localhost:8000").ask("Jon Smiht") returns the answer that Database.ask returns.

    The server sends answers without encryption: for other machines, put a proxy with TLS before it.
    """
    check_rules(options, _RULES)

    from qkv.core.formatting import memory_bytes
    from qkv.serve import Limits, run_server
    from qkv.serve.tokens import check_address, read_token

    body = memory_bytes(options.max_body)
    limits = Limits(body, options.max_queries, options.max_rows, options.max_requests, options.timeout)
    token = None if options.mcp else read_token(options.token_file)
    check_address(options.host, token)
    with _open(options) as served:
        if options.mcp:
            from qkv.serve.mcp_server import run_mcp

            run_mcp(served, limits)
            return

        def notify(address: str) -> None:
            print(f"{address} answers questions to {_describe(served)}.\nPress Ctrl-C to stop.", flush=True)

        run_server(served, host=options.host, port=options.port, token=token, limits=limits, notify=notify)


def _open(options: ServeCommand) -> ServedStore:
    """Open the store or index of the command, and return it as a `ServedStore`."""
    from qkv.database.storage.create import open_database
    from qkv.serve.served_store import ServedStore
    from qkv.store import is_store, is_url

    store, index, key, value = str(options.store), options.index, options.key, options.value
    if not is_url(store) and not is_store(store):
        found = _open_index(store)
        if found is None:
            raise DataError(
                f"STORE must be a store or a search index, got {store!r}. Make one: qkv store create {store} FILE "
                "--key COLUMN --value COLUMN."
            )
        if index is not None or key or value:
            raise OptionError("--index, --key and --value must be given with a store, got an index. Omit them.")
        return ServedStore(index=found)
    opened = None if index is None else _open_index(index)
    if index is not None and opened is None:
        raise DataError(f"--index must be a search index, got {index!r}. Make one: qkv search TEXTS --save FOLDER.")
    database = open_database(store, key or None, value or None, fold=None, memory=options.memory, damaged="refuse")
    return ServedStore(database, opened, refresh=options.refresh)


def _open_index(path: str) -> Index | None:
    """Return the search index in a folder; None if it holds none."""
    from qkv.search.index_files import is_index

    if not is_index(Path(path)):
        return None
    from qkv.search.index import Index

    return Index.open(path)


def _describe(served: ServedStore) -> str:
    parts = [] if served.database is None else [repr(served.database)]
    return " and ".join(parts + ([] if served.index is None else [repr(served.index)]))
