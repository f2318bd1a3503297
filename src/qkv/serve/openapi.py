"""The OpenAPI 3.1 description of the routes of a server."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from qkv.serve.answers import EXACT
from qkv.serve.arrow_bodies import MEDIA_TYPE
from qkv.serve.limits import Limits
from qkv.serve.questions import Option, ask_options, search_options

Schema: TypeAlias = Mapping[str, object]

_ERRORS = {
    401: "The token is missing or wrong.",
    403: "The request comes from a page of another site.",
    406: "No media type of Accept is offered.",
    408: "The body did not arrive in time.",
    413: "The body is too large.",
    415: "The media type of the body is not known.",
    422: "The request is malformed, or does not fit the store.",
    429: "Too many requests are answered at the same time.",
    503: "The server is stopping, or files of the store are damaged.",
    504: "The answer took too long.",
}
_QUERY = {
    "description": "A text, number, date or vector for a single key column; a list of the parts or an object by "
    'column for several. {"$": "date", "v": "2026-11-23"} is a value of a type that JSON does not have.'
}
_NUMBERS = {"type": ["number", "null"]}
_WEIGHTS = {"type": "object", "additionalProperties": {"type": "number"}}


def openapi_document(limits: Limits) -> Schema:
    """Return the description of the routes of a server with some limits.

    Example:
        >>> sorted(openapi_document(Limits())["paths"])
        ['/ask', '/explain', '/health', '/metrics', '/openapi.json', '/search', '/store']
    """
    ask, search = ask_options(limits), search_options(limits)
    words = {"type": "string", "minLength": 1, "maxLength": 10_000, "pattern": r"\S"}
    answers = {
        "application/json": {"schema": {"$ref": "#/components/schemas/Answers"}},
        MEDIA_TYPE: {"schema": {}},
        EXACT: {"schema": {}},
    }
    paths = {
        "/ask": {"post": _operation("ask", "Answer queries", ask, _QUERY, limits, answers)},
        "/explain": {"post": _operation("explain", "Return the plan of queries", ask, _QUERY, limits, _json("Plan"))},
        "/search": {"post": _operation("search", "Search passages", search, words, limits, _json("Results"))},
        "/health": {"get": _get("health", "Whether the server answers", _json("Health"), public=True)},
        "/store": {"get": _get("store", "Columns, rows, version, limits", {"application/json": {"schema": _OBJECT}})},
        "/metrics": {"get": _get("metrics", "Counters for Prometheus", {"text/plain": {"schema": {"type": "string"}}})},
        "/openapi.json": {"get": _get("openapi", "This document", {"application/json": {"schema": _OBJECT}})},
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "qkv serve", "version": "1", "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"}},
        "paths": paths,
        "security": [{}, {"token": []}],
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}, "schemas": _SCHEMAS},
    }


_OBJECT: Schema = {"type": "object"}


def _json(name: str) -> Schema:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}


def _operation(
    name: str, summary: str, options: tuple[Option, ...], query: Schema, limits: Limits, content: Schema
) -> Schema:
    """Return the description of a POST request, whose options are in a JSON body or, beside Arrow, in the URL."""
    optional = {option.name: {"anyOf": [option.schema(), {"type": "null"}]} for option in options}
    several = {"type": "array", "maxItems": limits.queries, "items": query}
    body = {
        "type": "object",
        "properties": {"query": query, "queries": several, **optional},
        "oneOf": [{"required": ["query"]}, {"required": ["queries"]}],
        "additionalProperties": False,
    }
    bodies = {
        "application/json": {"schema": body},
        MEDIA_TYPE: {"schema": {"description": "One row per query, with the key columns."}},
    }
    return {
        "operationId": name,
        "summary": summary,
        "parameters": [
            {
                "name": option.name,
                "in": "query",
                "required": False,
                "schema": option.schema(),
                "description": "Only beside an Arrow body; with a JSON body, options are in the body.",
            }
            for option in options
        ],
        "requestBody": {"required": True, "content": bodies},
        "responses": {"200": {"description": summary, "content": content}, **_errors(_ERRORS), **_NOT_SERVED},
    }


def _get(name: str, summary: str, content: Schema, public: bool = False) -> Schema:
    security: Schema = {"security": [{}]} if public else {}
    errors = _errors([403] if public else [401, 403])
    return {
        "operationId": name,
        "summary": summary,
        **security,
        "responses": {"200": {"description": summary, "content": content}, **errors},
    }


def _errors(statuses: Iterable[int]) -> Schema:
    return {str(status): {"description": _ERRORS[status], "content": _json("Error")} for status in statuses}


_NOT_SERVED = {"404": {"description": "The server has no store, or no index.", "content": _json("Error")}}


def _object_of(*required: str, **properties: object) -> Schema:
    return {"type": "object", "required": list(required), "properties": properties}


def _list_of(items: Schema) -> Schema:
    return {"type": "array", "items": items}


_STRING, _BOOLEAN = {"type": "string"}, {"type": "boolean"}
_INDEX = {"type": "integer", "minimum": 0}
_ROW = _object_of(
    *("weight", "index", "record"),
    weight=_NUMBERS,
    index=_INDEX,
    similarity=_NUMBERS,
    distance=_NUMBERS,
    record=_OBJECT,
)
_CALL = _object_of(
    *("score", "normalizer", "rows", "bandwidth"),
    score=_STRING,
    normalizer=_STRING,
    rows={"type": "string", "description": "The rows over which the call ran."},
    bandwidth={"type": "object", "description": "The bandwidth by key column, in its unit (days for dates)."},
)
_ANSWER = _object_of(
    *("query", "found", "value", "reason", "rows"),
    query={},
    found=_BOOLEAN,
    value={"description": "The weighted mean or the vote; null without a match."},
    reason=_STRING,
    invalid=_BOOLEAN,
    candidates=_list_of(_STRING),
    spread=_NUMBERS,
    perplexity=_NUMBERS,
    standard_error=_NUMBERS,
    prediction_interval={"type": ["array", "null"], "minItems": 2, "maxItems": 2},
    effective_rows=_NUMBERS,
    probabilities=_WEIGHTS,
    gradient=_OBJECT,
    gradient_error=_OBJECT,
    fit_note=_STRING,
    missing_rows=_list_of(_INDEX),
    remarks=_list_of(_STRING),
    calls=_list_of(_CALL),
    rows=_list_of(_ROW),
)
_VERSION = {"type": ["integer", "null"], "description": "The version of the store that answered."}
_HIT = _object_of(
    *("document", "title", "text", "start", "end", "weight", "score"),
    document=_STRING,
    title=_STRING,
    text=_STRING,
    start={"type": "integer"},
    end={"type": "integer"},
    weight={"type": "number"},
    score={"type": "number"},
    words=_WEIGHTS,
    query_words=_WEIGHTS,
    rest={"type": "number"},
)
_SCHEMAS: Schema = {
    "Answers": _object_of(
        *("answers", "key", "value", "votes", "notes", "version"),
        answers=_list_of(_ANSWER),
        key=_list_of(_STRING),
        value=_STRING,
        votes=_BOOLEAN,
        notes=_list_of(_STRING),
        version=_VERSION,
    ),
    "Plan": _object_of("plan", "notes", "version", plan=_STRING, notes=_list_of(_STRING), version=_VERSION),
    "Results": _object_of("results", results=_list_of(_list_of(_HIT))),
    "Health": _object_of("status", "version", status={"enum": ["ok", "stale"]}, version=_VERSION),
    "Error": _object_of("error", "type", error=_STRING, type=_STRING),
}
