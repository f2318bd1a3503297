"""A server of the Model Context Protocol, by which an assistant asks a store and gets answers with their evidence."""

# Annotations are not strings here: the tools are described by them.

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from qkv.core.extras import require_packages
from qkv.errors import QkvError
from qkv.serve.answers import answer_object, describe_store, hits_object
from qkv.serve.limits import Limits
from qkv.serve.questions import Question, Search, read_question, read_search
from qkv.serve.served_store import Answered, ServedStore

if TYPE_CHECKING:
    from mcp.server import MCPServer

T = TypeVar("T")


_ABOUT = (
    "Answers questions to a table by similarity: each answer is a weighted mean or vote over the rows whose keys are "
    "near the query, with these rows as evidence. Call describe first to see the columns. Cite the rows of evidence, "
    "and say so if found is false: then reason says why there is no match."
)


def create_mcp_server(served: ServedStore, limits: Limits | None = None) -> "MCPServer[Any]":
    """Return a server with the tools describe, ask and search, of which those without data are left out."""
    require_packages("the MCP server needs", "serve", "mcp", "pydantic")
    from mcp.server import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError
    from pydantic import Field

    bounds = limits or Limits()
    server: MCPServer[Any] = MCPServer("qkv", instructions=_ABOUT, log_level="WARNING")

    async def answer(request: Question | Search) -> Answered:
        try:
            return await asyncio.wait_for(asyncio.wrap_future(served.submit(request)), bounds.seconds)
        except TimeoutError:
            raise ToolError(f"the answer took more than {bounds.seconds:g} seconds. Ask fewer queries.") from None
        except QkvError as error:
            raise ToolError(str(error)) from None

    @server.tool(annotations=_reads_only(), structured_output=True)
    async def describe() -> dict[str, object]:
        """Return the key columns, the value column, the number of rows and the version of the store."""
        return describe_store(served, bounds)

    if served.database is not None:

        @server.tool(annotations=_reads_only(), structured_output=True)
        async def ask(
            queries: Annotated[
                list[Any],
                Field(description="A text, number or date each; a list of parts each if there are several key columns"),
            ],
            where: Annotated[str | None, Field(description="SQL predicate over the columns, as city = 'Oslo'")] = None,
            top: Annotated[int, Field(description="Rows of evidence per query", ge=1, le=bounds.rows)] = 5,
            score: Annotated[str | None, Field(description="Name of a score, as gaussian:0.1 or spelling")] = None,
            normalizer: Annotated[str | None, Field(description="Name of a normalizer, as topk:10")] = None,
            min_similarity: Annotated[float | None, Field(description="Least similarity of a match")] = None,
            max_distance: Annotated[float | None, Field(description="Largest distance of a match")] = None,
            aggregate: Annotated[
                Literal["mean", "vote", "local-linear"] | None, Field(description="Kind of answer")
            ] = None,
        ) -> dict[str, object]:
            """Return the value for each query, its uncertainty, and the rows that support it with their weights."""
            fields: dict[str, object] = {
                "queries": queries,
                "where": where,
                "top": top,
                "score": score,
                "normalizer": normalizer,
            }
            fields |= {"min_similarity": min_similarity, "max_distance": max_distance}
            fields |= {"aggregate": aggregate, "on_bad_query": "report"}
            return answer_object(await answer(_read(read_question, fields, bounds, ToolError)))

    if served.index is not None:

        @server.tool(annotations=_reads_only(), structured_output=True)
        async def search(
            query: Annotated[str, Field(description="Words to search")],
            top: Annotated[int, Field(description="Most passages to return", ge=1, le=bounds.rows)] = 5,
        ) -> dict[str, object]:
            """Return the passages of texts that match the words, with the words that made them match."""
            return hits_object(await answer(_read(read_search, {"query": query, "top": top}, bounds, ToolError)))

    return server


def _read(read: Callable[..., T], fields: Mapping[str, object], limits: Limits, error_class: type[Exception]) -> T:
    """Return the request in the arguments of a tool; an error becomes one that the assistant sees."""
    try:
        return read(fields, limits)
    except QkvError as error:
        raise error_class(str(error)) from None


def _reads_only() -> Any:
    from mcp.types import ToolAnnotations

    return ToolAnnotations(read_only_hint=True, open_world_hint=False)


def run_mcp(served: ServedStore, limits: Limits | None = None) -> None:
    """Serve the tools on standard input and output until the input ends; see `create_mcp_server`."""
    create_mcp_server(served, limits).run("stdio")
