"""All routes of the console: the tables of the resources, one after the other."""

from __future__ import annotations

from typing import Final

from moldau.console import openapi
from moldau.console.calls import Call, Reply
from moldau.console.own import brokers as own_brokers
from moldau.console.own import (
    explain,
    group,
    group_reset,
    groups,
    message_download,
    message_live,
    message_produce,
    messages,
    overview,
    quorum,
    quotas,
    saved,
    session,
    topic,
    transactions,
    users,
)
from moldau.console.own import records as own_records
from moldau.console.own import topics as own_topics
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
    *overview.ROUTES,
    *own_topics.ROUTES,
    *topic.ROUTES,
    *groups.ROUTES,
    *group.ROUTES,
    *group_reset.ROUTES,
    *own_brokers.ROUTES,
    *users.ROUTES,
    *quotas.ROUTES,
    *explain.ROUTES,
    *saved.ROUTES,
    *transactions.ROUTES,
    *quorum.ROUTES,
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
