"""An assistant asks a store over the Model Context Protocol, and receives answers with their evidence."""

import os
import sys

import pytest

from qkv.database import Database

from .conftest import PAY, run_async

pytest.importorskip("mcp.server.mcpserver", reason="the extra mcp is not installed")


def call(served, name: str, arguments: dict) -> object:
    """Return the result of one call of a tool, over streams in memory."""
    from mcp import Client

    from qkv.serve.mcp_server import create_mcp_server

    async def run() -> object:
        async with Client(create_mcp_server(served)) as client:
            return await client.call_tool(name, arguments)

    return run_async(run())


def test_a_tool_returns_the_answer_of_the_database_with_its_evidence(served):
    result = call(served, "ask", {"queries": [2.0, "x"], "score": "boxcar:1", "top": 2})
    local = Database.open(PAY, key="years", value="pay").ask(2.0, score="boxcar:1", top=2)
    first, second = result.structured_content["answers"]
    assert not result.is_error
    assert first["value"] == local.value
    assert [row["record"] for row in first["rows"]] == [row.record for row in local.rows]
    assert (second["found"], second["invalid"]) == (False, True)


def test_a_tool_that_fails_returns_the_sentence_of_the_error(served):
    result = call(served, "ask", {"queries": [1], "where": "nope = 1"})
    assert result.is_error
    assert "nope" in result.content[0].text


def test_the_description_names_the_columns(served):
    described = call(served, "describe", {}).structured_content["database"]
    assert described["key"] == [{"name": "years", "kind": "number"}]
    assert (described["value"]["name"], described["rows"]) == ("pay", 6)


def test_only_the_tools_that_have_data_are_offered(served):
    from qkv.serve.mcp_server import create_mcp_server

    names = {tool.name for tool in run_async(create_mcp_server(served).list_tools())}
    assert names == {"describe", "ask"}


def test_the_command_speaks_the_protocol_on_standard_output_alone(store):
    from mcp import Client, StdioServerParameters
    from mcp.client.stdio import stdio_client

    arguments = ["-m", "qkv", "serve", str(store.store.path), "--mcp"]
    process = StdioServerParameters(command=sys.executable, args=arguments, env=dict(os.environ))

    async def run() -> object:
        async with Client(stdio_client(process)) as client:
            return await client.call_tool("ask", {"queries": [2.0], "score": "boxcar:0.5"})

    found = run_async(run()).structured_content
    assert (found["answers"][0]["value"], found["version"]) == (12.0, 1)
