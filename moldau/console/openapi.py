"""The OpenAPI document, made from the table of routes."""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus
from typing import Any, Final

import moldau
from moldau.console.routes import Parameter, Route
from moldau.console.schemas import COMPONENTS, INTEGER, STRING, named, nullable, record

PROBLEM: Final = named(
    "Problem",
    record(
        {
            "type": STRING,
            "title": STRING,
            "status": INTEGER,
            "detail": STRING,
            "instance": STRING,
            "error_code": INTEGER,
            "kafka_error": nullable(STRING),
            "message": STRING,
        }
    ),
)
PROBLEM_JSON: Final = "application/problem+json"
DESCRIPTION: Final = """\
The JSON API of Moldau's console. Paths below `/v3` are those of Confluent's REST v3 and have its \
bodies. Clients say who they are with Basic or Bearer. Pages log in at `/api/v1/session`, and show \
the `request_token` of its answer in `X-Moldau-Request-Token` with every change.\
"""


def document(routes: Iterable[Route]) -> dict[str, Any]:
    """The OpenAPI 3.1 document of these routes."""
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Moldau console",
            "version": moldau.__version__,
            "description": DESCRIPTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": dict(COMPONENTS),
            "securitySchemes": {
                "basic": {"type": "http", "scheme": "basic"},
                "bearer": {"type": "http", "scheme": "bearer"},
                "session": {"type": "apiKey", "in": "cookie", "name": "moldau-session"},
            },
        },
        "security": [{"basic": []}, {"bearer": []}, {"session": []}, {}],
    }


def _operation(route: Route) -> dict[str, Any]:
    tag = route.segments[0] if route.is_confluents else "own"
    made: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.summary,
        "tags": [tag],
        "parameters": [
            *(
                {"name": name, "in": "path", "required": True, "schema": STRING}
                for name in route.variables
            ),
            *map(_parameter, route.query),
        ],
        "responses": _responses(route),
    }
    if route.needs:
        made["description"] = f"ACLs: {route.needs}."
    if route.is_open:
        made["security"] = []
    if route.body is not None or route.reads_body:
        schema = {} if route.body is None else route.body
        content = {"application/json": {"schema": schema}}
        made["requestBody"] = {"required": True, "content": content}
    return made


def _parameter(parameter: Parameter) -> dict[str, Any]:
    schema = dict(parameter.schema)
    if parameter.default is not None:
        schema["default"] = parameter.default
    made = {
        "name": parameter.name,
        "in": "query",
        "description": parameter.description,
        "required": parameter.is_required,
        "schema": schema,
    }
    if schema.get("type") == "array":
        made |= {"style": "form", "explode": False}
    return made


def _responses(route: Route) -> dict[str, Any]:
    own: dict[str, Any] = {"description": HTTPStatus(route.status).phrase}
    if route.answer is not None:
        own["content"] = {route.content_type: {"schema": route.answer}}
    elif route.status != HTTPStatus.NO_CONTENT and route.content_type != "application/json":
        own["content"] = {route.content_type: {"schema": STRING}}
    refused = {"description": "Refused, or failed", "content": {PROBLEM_JSON: {"schema": PROBLEM}}}
    more = {str(status): {"description": text} for status, text in route.may_be.items()}
    return {str(route.status): own, **more, "default": refused}
