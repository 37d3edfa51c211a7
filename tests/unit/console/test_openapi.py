"""The OpenAPI document has every route, and nothing else."""

from __future__ import annotations

import json
import re
from typing import Any

from jsonschema import Draft202012Validator

from moldau.console.application import Console
from moldau.console.openapi import document
from moldau.console.people import Way
from moldau.console.settings import ConsoleSettings
from moldau.console.tables import ROUTES
from tests.unit.console.asking import ask

METHODS = {"get", "put", "post", "delete", "patch"}


async def served() -> Any:
    console = Console(ConsoleSettings(Way({"bootstrap.servers": "localhost:1"})))
    answer = await ask(console, "/openapi.json")
    assert answer.status == 200
    return answer.document


async def test_every_route_is_in_the_document_and_back() -> None:
    made = await served()
    described = {
        (method.upper(), path)
        for path, operations in made["paths"].items()
        for method in operations
    }
    assert described == {(route.method, route.path) for route in ROUTES}
    assert {method for operations in made["paths"].values() for method in operations} <= METHODS


async def test_paths_have_their_parameters() -> None:
    made = await served()
    for path, operations in made["paths"].items():
        names = re.findall(r"\{(\w+)\}", path)
        for operation in operations.values():
            given = [each["name"] for each in operation["parameters"] if each["in"] == "path"]
            assert given == names


def test_references_lead_somewhere() -> None:
    text = json.dumps(document(ROUTES))
    made = json.loads(text)
    for name in re.findall(r"#/components/schemas/(\w+)", text):
        assert name in made["components"]["schemas"]
    for schema in made["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)
    for route in ROUTES:
        for schema in (route.body, route.answer, *(each.schema for each in route.query)):
            if schema is not None:
                Draft202012Validator.check_schema(schema)


def test_every_answer_that_refuses_is_a_problem() -> None:
    for operations in document(ROUTES)["paths"].values():
        for operation in operations.values():
            content = operation["responses"]["default"]["content"]
            assert [*content] == ["application/problem+json"]
