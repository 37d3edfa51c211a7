"""`…/overview`: the cluster at a glance, for the page's first view and its banner."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from typing import Final

from moldau.client import Admin, ConfigResource, ConfigResourceType, TopicDescription
from moldau.console.calls import Call, Reply
from moldau.console.own.brokers import BROKER_ROW, broker_rows, serving
from moldau.console.own.figures import add_figures
from moldau.console.own.gathering import (
    ANSWER_TIMEOUT_MS,
    certificates_of,
    cluster_of,
    controller_of,
    directories_of,
    groups_of,
    has_answered,
    known,
    topics_of,
)
from moldau.console.own.health import (
    CRITICAL,
    DEGRADED,
    HEALTHY,
    PartitionStates,
    health_document,
    is_under_replicated,
    troubles_of,
)
from moldau.console.own.lists import OWN
from moldau.console.routes import Route
from moldau.console.schemas import INTEGER, STRING, array, named, nullable, one_of, record

MIN_ISR: Final = "min.insync.replicas"
OPEN_STATES: Final = ("Ongoing", "PrepareCommit", "PrepareAbort")
"""States of transactions that have not ended, in Kafka's words."""
_COUNTS: Final = (
    "topics",
    "internal_topics",
    "partitions",
    "under_replicated",
    "under_min_isr",
    "offline",
    "groups",
    "transactions_open",
)
_NUMBER: Final = nullable({"type": "number"})
OVERVIEW: Final = named(
    "Overview",
    record(
        {
            "health": record(
                {
                    "status": one_of(HEALTHY, DEGRADED, CRITICAL),
                    "sentence": STRING,
                    "problems": array(record({"severity": STRING, "text": STRING, "link": STRING})),
                }
            ),
            "controller_id": nullable(INTEGER),
            "brokers": array(BROKER_ROW),
            "counts": record(dict.fromkeys(_COUNTS, nullable(INTEGER))),
            "rates": nullable(
                record(
                    dict.fromkeys(
                        ("bytes_in_s", "bytes_out_s", "messages_in_s", "requests_s"), _NUMBER
                    )
                )
            ),
            "size_bytes": nullable(INTEGER),
            "certificates": array(
                record({"listener": STRING, "subject": STRING, "expires_at_ms": INTEGER})
            ),
            "consoles": array(record({"broker_id": INTEGER, "url": STRING})),
        }
    ),
)


async def show_overview(call: Call) -> Reply:
    """The cluster at a glance, as far as the person may see it."""
    clients = await call.clients()
    cluster = await cluster_of(clients.admin)
    topics, directories, groups, transactions = await asyncio.gather(
        topics_of(clients),
        directories_of(clients, serving(cluster)),
        groups_of(clients),
        known(clients.admin.list_transactions(states=OPEN_STATES, timeout_ms=ANSWER_TIMEOUT_MS)),
    )
    lacking = [
        name for name, topic in topics.items() if any(map(is_under_replicated, topic.partitions))
    ]
    reached = [each for each, found in directories.items() if has_answered(found)]
    min_isr, certificates = await asyncio.gather(
        _min_isr(clients.admin, lacking), certificates_of(clients.admin, reached)
    )
    states = PartitionStates.of(topics, min_isr or {})
    controller = await controller_of(clients.admin)
    rows = broker_rows(cluster, topics, directories, controller.node_id)
    figures = await add_figures(call, rows, directories)
    rates = None
    if figures is not None and len(rows) == 1:  # of several nodes, one does not know the sum
        rates = call.site.rates.of(figures.traffic)
    sizes = [row["size_bytes"] for row in rows if row["size_bytes"] is not None]
    now_ms = int(time.time() * 1000)
    troubles = troubles_of(cluster, directories, states, controller, certificates, now_ms)
    return Reply(
        {
            "health": health_document(troubles, len(cluster.brokers), states),
            "controller_id": controller.node_id,
            "brokers": rows,
            "counts": {
                "topics": _count(topics.values(), is_internal=False),
                "internal_topics": _count(topics.values(), is_internal=True),
                "partitions": states.total,
                "under_replicated": len(states.under_replicated),
                "under_min_isr": None if min_isr is None else len(states.under_min_isr),
                "offline": len(states.offline),
                "groups": None if groups is None else len(groups),
                "transactions_open": None if transactions is None else len(transactions),
            },
            "rates": rates,
            "size_bytes": sum(sizes) if sizes else None,
            "certificates": [each._asdict() for each in certificates],
            "consoles": [],
        }
    )


def _count(topics: Collection[TopicDescription], *, is_internal: bool) -> int:
    return sum(each.is_internal is is_internal for each in topics)


async def _min_isr(admin: Admin, names: Collection[str]) -> dict[str, int] | None:
    """The min.insync.replicas of topics; None where they are not known."""
    if not names:
        return {}
    resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in names]
    asking = admin.describe_configs(resources, keys=[MIN_ISR], timeout_ms=ANSWER_TIMEOUT_MS)
    found = await known(asking)
    if found is None:
        return None
    values = {each.name: entries.get(MIN_ISR) for each, entries in found.items()}
    return {name: int(each.value) for name, each in values.items() if each and each.value}


ROUTES: Final = (
    Route(
        method="GET",
        path=f"{OWN}/overview",
        handler=show_overview,
        name="getOverview",
        summary="The cluster at a glance: its health in a sentence, brokers, counts",
        needs="Describe on topics, groups and the cluster; what may not be seen is left out",
        answer=OVERVIEW,
    ),
)
