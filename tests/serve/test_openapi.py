"""The OpenAPI document describes what the server does: schemathesis finds no request that contradicts it."""

import pytest

from qkv.database import Database
from qkv.search import Document, Index
from qkv.serve import Limits, ServedStore, create_app
from qkv.serve.openapi import openapi_document
from tests.effort import LONG

from .conftest import PAY, run_in_thread


def findings(examples: int, seed: int) -> list[str]:
    """Return what contradicts the document in some examples of each operation, with requests that reproduce it."""
    schemathesis = pytest.importorskip("schemathesis", reason="the extra test is not installed")
    from schemathesis.config import SchemathesisConfig

    texts = [Document("a", "", "the golden ring in the river"), Document("b", "", "wolves in the den of the forest")]
    found = []
    with ServedStore(Database.open(PAY, key="years", value="pay"), Index.from_texts(texts, mix=0.0)) as served:
        app = create_app(served, limits=Limits(queries=64, rows=20))
        # Whether a score, a predicate or a query fits is known only to the store.
        accepted = ["2xx", "406", "415", "422"]
        config = SchemathesisConfig.from_dict(
            {
                "seed": seed,
                "generation": {"max-examples": examples, "database": "none"},
                "checks": {"positive_data_acceptance": {"expected-statuses": accepted}},
            }
        )
        schema = schemathesis.openapi.from_asgi("/openapi.json", app, config=config)
        from schemathesis.engine import Status, events, from_schema

        for event in from_schema(schema).execute():
            if isinstance(event, events.ScenarioFinished) and event.status in (Status.FAILURE, Status.ERROR):
                for checks in event.recorder.checks.values():
                    found += [str(check.failure_info.failure) for check in checks if check.failure_info is not None]
            if isinstance(event, events.NonFatalError | events.FatalError):
                found.append(repr(event))
    return found


@pytest.mark.filterwarnings("ignore:Generating overly large repr", "ignore:overflow encountered:RuntimeWarning")
def test_a_sample_of_requests_agrees_with_the_document():
    assert run_in_thread(findings, 300 if LONG else 1, 1) == []


def test_every_reference_of_the_document_names_a_schema():
    document = openapi_document(Limits())
    names = set(document["components"]["schemas"])

    def references(value):
        if isinstance(value, dict):
            for name, item in value.items():
                yield from [item] if name == "$ref" else references(item)
        elif isinstance(value, list):
            for item in value:
                yield from references(item)

    assert {reference.rsplit("/", 1)[1] for reference in references(document)} <= names
