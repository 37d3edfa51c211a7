"""Who may read which page: a row for each page and each method, and no page without one."""

from __future__ import annotations

import base64
import uuid
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from moldau.metadata.image import MetadataDelta, MetadataImage, Provenance
from moldau.metadata.image.security import AccessControlEntry
from moldau.node.http import server as http_server
from moldau.protocol.access_control import (
    CLUSTER_RESOURCE_NAME,
    Operation,
    PatternType,
    PermissionType,
    ResourceType,
)
from moldau.protocol.metadata_records import UserScramCredentialRecord
from moldau.protocol.scram import salted_password, scram_keys
from moldau.server.audit_log import DecisionLog
from moldau.server.standard_authorizer import StandardAuthorizer
from tests.kit.manual_clock import ManualClock
from tests.unit.broker.harness import DataPath
from tests.unit.node.http.site import Site, served

PASSWORD = "secret"
TOPIC, HIDDEN = "seen", "hidden"

STATUSES = {
    # page: of a client without a name, of a user without rights, of one with Describe
    "/healthz": (200, 200, 200),
    "/readyz": (200, 200, 200),
    "/metrics": (401, 403, 200),
    "/api/v1/cluster": (401, 403, 200),
    "/api/v1/certificates": (401, 403, 200),
    "/api/v1/metadata": (401, 403, 200),
    "/api/v1/log-directories": (401, 403, 200),
    "/api/v1/topics": (401, 200, 200),
    "/api/v1/topics/{topic}": (401, 403, 200),
}
"""What a page answers. A topic that may not be described answers as one that does not exist."""
FOR_THE_TOPIC = {"/api/v1/topics", "/api/v1/topics/{topic}"}
"""Pages that Describe on topics opens; Describe on the cluster opens the others."""

DESCRIBE, DESCRIBE_CONFIGS = Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS
CLUSTER_ENTRY = (ResourceType.CLUSTER, CLUSTER_RESOURCE_NAME, DESCRIBE)
TOPIC_ENTRY = (ResourceType.TOPIC, TOPIC, DESCRIBE)


def basic(user: str, password: str = PASSWORD) -> str:
    return "Authorization: Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def users(*names: str) -> MetadataImage:
    """Metadata with these users; all have one password."""
    salted = salted_password("SCRAM-SHA-256", PASSWORD, b"salt", 4_096)
    keys = scram_keys("SCRAM-SHA-256", salted, b"salt", 4_096)
    delta = MetadataDelta(MetadataImage.EMPTY)
    for name in names:
        delta.replay(UserScramCredentialRecord(name=name, mechanism=1, **keys._asdict()))
    return delta.apply(Provenance())


def entry(user: str, kind: ResourceType, name: str, operation: Operation) -> AccessControlEntry:
    literal, allow = PatternType.LITERAL, PermissionType.ALLOW
    return AccessControlEntry(kind, name, literal, f"User:{user}", "*", operation, allow)


def ruled(
    monkeypatch: pytest.MonkeyPatch, broker: DataPath, **settings: str
) -> AbstractAsyncContextManager[Site]:
    """A broker's pages with an authorizer, users `none`, `cluster`, `topics` and `configs`."""

    @asynccontextmanager
    async def serving() -> AsyncIterator[Site]:
        log = DecisionLog(ManualClock(), 100)
        authorizer = StandardAuthorizer((), allows_unmentioned=False, log=log)
        entries = [
            entry("cluster", *CLUSTER_ENTRY),
            entry("topics", *TOPIC_ENTRY),
            entry("configs", *TOPIC_ENTRY),
            entry("configs", ResourceType.TOPIC, TOPIC, DESCRIBE_CONFIGS),
        ]
        authorizer.change({uuid.uuid4(): each for each in entries})
        broker.create_topic(TOPIC, retention_ms="1234")
        broker.create_topic(HIDDEN)
        image = users("none", "cluster", "topics", "configs")
        async with served(
            monkeypatch,
            settings={"authentication": "BASIC", **settings},
            services=lambda: broker.services,
            authorizer=lambda: authorizer,
            image=lambda: image,
            is_ready=lambda: True,
        ) as site:
            yield site

    return serving()


@pytest.fixture
async def site(monkeypatch: pytest.MonkeyPatch, broker: DataPath) -> AsyncIterator[Site]:
    async with ruled(monkeypatch, broker) as running:
        yield running


def test_every_page_has_a_row():
    assert set(http_server.RULES) == set(STATUSES)


async def test_the_router_has_no_other_page(site: Site):
    resources = site.listener._application().router.resources()
    pages = {each.canonical: {route.method for route in each} for each in resources}
    assert pages == {page: {"GET", "HEAD"} for page in STATUSES}


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("page", STATUSES)
async def test_pages_are_served_to_those_who_may_read_them(site: Site, page: str, method: str):
    path = page.replace("{topic}", TOPIC)
    user = "topics" if page in FOR_THE_TOPIC else "cluster"
    statuses = [
        (await site.ask(path, *headers, method=method)).status
        for headers in ((), (basic("none"),), (basic(user),))
    ]
    assert tuple(statuses) == STATUSES[page]
    assert (await site.ask(path, basic("topics", "wrong"))).status == min(STATUSES[page][0], 401)


@pytest.mark.parametrize("page", [page for page in STATUSES if page not in FOR_THE_TOPIC])
async def test_describe_on_a_topic_opens_no_page_of_the_cluster(site: Site, page: str):
    assert (await site.ask(page, basic("topics"))).status == STATUSES[page][1]


@pytest.mark.parametrize("path", ["/", "/api/v1", "/metrics/", "//metrics", "/api/v1/topics/a/b"])
async def test_what_is_no_page_needs_authentication_too(site: Site, path: str):
    assert (await site.ask(path)).status == 401
    assert (await site.ask(path, basic("none"))).status == 404
    assert (await site.ask("/metrics", basic("none"), method="POST")).status == 405
    assert (await site.ask("/metrics", method="POST")).status == 401


@pytest.mark.parametrize("path", ["/%6detrics", "/api/v1/%63luster", "http://x/metrics"])
async def test_other_spellings_of_a_page_have_its_rule(site: Site, path: str):
    assert (await site.ask(path)).status == 401
    assert (await site.ask(path, basic("none"))).status == 403
    assert (await site.ask(path, basic("cluster"))).status == 200


async def test_topics_that_may_not_be_described_are_not_there(site: Site):
    async def names(user: str) -> list[str]:
        document = (await site.ask("/api/v1/topics", basic(user))).document
        return [each["name"] for each in document["topics"]]

    assert await names("topics") == [TOPIC]
    assert await names("none") == []
    refused = [
        (await site.ask(f"/api/v1/topics/{name}", basic("topics"))) for name in (HIDDEN, "none")
    ]
    assert [each.status for each in refused] == [403, 403]
    assert [each.document["error"] for each in refused] == [
        f"User:topics may not Describe {name}" for name in (HIDDEN, "none")
    ]
    metrics = await site.ask("/metrics", basic("none"))
    assert metrics.document == {"error": "User:none may not Describe the cluster"}


async def test_configurations_are_shown_to_those_who_may_describe_them(site: Site):
    async def configs(user: str) -> Any:
        return (await site.ask(f"/api/v1/topics/{TOPIC}", basic(user))).document["configs"]

    assert await configs("configs") == {"retention.ms": "1234"}
    assert await configs("topics") is None


@pytest.mark.parametrize("page", ["/metrics", "/healthz", "/readyz"])
async def test_pages_are_open_that_the_configuration_opens(
    monkeypatch: pytest.MonkeyPatch, broker: DataPath, page: str
):
    async with ruled(monkeypatch, broker, open_paths=page) as site:
        for each, expected in STATUSES.items():
            path = each.replace("{topic}", TOPIC)
            status = (await site.ask(path)).status
            assert status == (200 if each == page else 401), (each, expected)
            opened = await site.ask(path, "Authorization: nonsense")
            assert (opened.status == 200) == (each == page)
