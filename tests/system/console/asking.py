"""Questions to the console's own resources, whose answers have to fit their schemas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from jsonschema import Draft202012Validator

from moldau.console.guard import target_of
from moldau.console.openapi import document
from moldau.console.routes import RouteTable
from moldau.console.tables import ROUTES
from tests.system.console.site import Answer, Site

_TABLE: Final = RouteTable(ROUTES)
_DOCUMENT: Final = document(ROUTES)


def name_in_path(name: str) -> str:
    """A name of any text as one segment of a path."""
    return quote(name, safe="")


async def ask_own(site: Site, path: str, **more: Any) -> Answer:
    """The answer to a question about the cluster, of the form that `/openapi.json` promises."""
    cluster_id = await site.cluster_id(more.get("headers"))
    whole = f"/api/v1/clusters/{cluster_id}/{path}"
    answer = await site.ask(whole, **more)
    check_form(more.get("method", "GET"), whole, answer.status, answer.document)
    return answer


def check_form(method: str, path: str, status: int, answer: object) -> None:
    """Have a good answer fit the schema of its route."""
    route, _ = _TABLE.find(method, target_of(path))
    if status == route.status and route.answer is not None:
        schema = {**route.answer, "components": _DOCUMENT["components"]}
        Draft202012Validator(schema).validate(answer)


async def own(site: Site, path: str, **more: Any) -> Any:
    """The document of an answer that has to be a good one."""
    answer = await ask_own(site, path, **more)
    assert answer.status == 200, answer.document
    return answer.document


async def look_anew(site: Site, headers: Mapping[str, str] | None = None) -> None:
    """Have the console ask the cluster for what it may have kept for a person: on a slow machine it
    keeps what took long, until the person changes something, or tries to.
    """
    answer = await ask_own(site, "groups/absent", method="DELETE", headers=headers)
    assert answer.status in (403, 404), answer.document
