"""All routes of the console: the tables of the resources, one after the other."""

from __future__ import annotations

from typing import Final

from moldau.console import openapi
from moldau.console.calls import Call, Reply
from moldau.console.own import message_download, message_live, message_produce, messages, session
from moldau.console.own import records as own_records
from moldau.console.routes import Route
from moldau.console.v3 import (
    acls,
    brokers,
    clusters,
    configs,
    consumer_groups,
    partitions,
    records,
    topics,
)


async def _show_document(_call: Call) -> Reply:
    return Reply(openapi.document(ROUTES))


ROUTES: Final[tuple[Route, ...]] = (
    *session.ROUTES,
    *clusters.ROUTES,
    *brokers.ROUTES,
    *topics.ROUTES,
    *partitions.ROUTES,
    *configs.ROUTES,
    *consumer_groups.ROUTES,
    *acls.ROUTES,
    *records.ROUTES,
    *own_records.ROUTES,
    *messages.ROUTES,
    *message_download.ROUTES,
    *message_live.ROUTES,
    *message_produce.ROUTES,
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
