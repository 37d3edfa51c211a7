"""All routes of the console: the tables of the resources, one after the other."""

from __future__ import annotations

from typing import Final

from moldau.console import openapi
from moldau.console.calls import Call, Reply
from moldau.console.own import session
from moldau.console.routes import Route


async def _show_document(_call: Call) -> Reply:
    return Reply(openapi.document(ROUTES))


ROUTES: Final[tuple[Route, ...]] = (
    *session.ROUTES,
    Route(
        method="GET",
        path="/openapi.json",
        handler=_show_document,
        name="getOpenApi",
        summary="This document",
        answer={"type": "object"},
        is_open=True,
    ),
)
"""A resource's file has its own `ROUTES`, and a line here."""
