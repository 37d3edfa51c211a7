"""The HTTP listener with TLS, passwords, certificates and permissions, by real HTTP clients."""

from __future__ import annotations

import base64
import datetime
import http.client
import json
import re
import shutil
import socket
import ssl
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import trustme

from moldau.client import (
    AclBinding,
    AclOperation,
    AclResourceType,
    NewTopic,
    ScramMechanism,
    ScramUpsertion,
)
from moldau.client.sync import Admin
from moldau.node.http.passwords import BURST_S, HOSTS_TRIES_PER_S
from tests.kit.waiting import until
from tests.system.processes import properties, run_cli, run_node
from tests.system.security.nodes import AUTHORIZER, SecuredNode, keystore

CAROL, DAVE = ("carol", "c-secret"), ("dave", "d-secret")
CLUSTER = "kafka-cluster"


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> str:
        """The sentence of a refusal."""
        assert self.headers["content-type"].startswith("application/json")
        found = json.loads(self.body)
        assert list(found) == ["error"]
        return str(found["error"])


class Site:
    """Asks one node's HTTPS listener, a connection each time."""

    def __init__(self, node: SecuredNode, scheme: str = "HTTPS") -> None:
        found = until(
            lambda: re.search(rf"{scheme} listener on ([\d.]+):(\d+)", node.log()),
            what="the node logs its HTTP address",
        )
        assert found is not None
        self.node = node
        self.port = int(found[2])
        self.url = f"https://127.0.0.1:{self.port}"

    def context(self, own: Path | None = None) -> ssl.SSLContext:
        made = ssl.create_default_context(cafile=str(self.node.trust_path))
        if own is not None:
            made.load_cert_chain(own)
        return made

    def ask(
        self, path: str, user: tuple[str, str] | str | None = None, own: Path | None = None
    ) -> Answer:
        """`user` is a name and a password, or the whole Authorization header."""
        connection = http.client.HTTPSConnection(
            "127.0.0.1", self.port, timeout=20, context=self.context(own)
        )
        if isinstance(user, tuple):
            user = "Basic " + base64.b64encode(":".join(user).encode()).decode()
        try:
            connection.request("GET", path, headers={} if user is None else {"Authorization": user})
            response = connection.getresponse()
            headers = {
                name.lower(): response.getheader(name) or "" for name, _ in response.getheaders()
            }
            return Answer(response.status, headers, response.read())
        finally:
            connection.close()

    def wait_for(self, path: str, user: tuple[str, str], status: int) -> None:
        """Wait until the broker answers so: it learns of a change after the controller, which
        answered, and refuses tries while there were too many.
        """
        until(lambda: self.ask(path, user).status == status, what=f"{path} is answered by {status}")

    def certificate(self) -> bytes:
        """The node's, as new connections see it."""
        return ssl.get_server_certificate(("127.0.0.1", self.port)).encode()


def http_keys(home: Path) -> dict[str, str]:
    return {
        "moldau.http.listener": "127.0.0.1:0",
        "moldau.http.authentication": "BASIC",
        "moldau.http.ssl.keystore.location": str(home / "http.pem"),
        "moldau.http.ssl.client.auth": "requested",
        "moldau.http.ssl.truststore.location": str(home / "ca.pem"),
        "moldau.http.ssl.principal.mapping.rules": "RULE:^OU=([a-z]+),O=.*$/$1-client/",
        "connection.failed.authentication.delay.ms": "0",
    }


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A node with an authorizer; carol is a super user, dave is not."""
    home = tmp_path_factory.mktemp("https")
    changed = {
        **http_keys(home),
        "authorizer.class.name": AUTHORIZER,
        "super.users": "User:ANONYMOUS;User:carol",
    }
    made = SecuredNode(home, changed)
    keystore(made.authority, home / "http.pem")
    with made as running:
        with Admin(running.address("PLAINTEXT")) as admin:
            outcome = admin.alter_user_scram_credentials(
                [
                    ScramUpsertion(*CAROL, ScramMechanism.SCRAM_SHA_256),
                    ScramUpsertion(*DAVE, ScramMechanism.SCRAM_SHA_512),
                ]
            )
        assert set(outcome.values()) == {None}
        made_site = Site(running)
        made_site.wait_for("/metrics", CAROL, 200)
        made_site.wait_for("/metrics", DAVE, 403)
        yield made_site


@pytest.fixture
def admin(site: Site) -> Iterator[Admin]:
    with Admin(site.node.address("PLAINTEXT")) as made:
        yield made


def test_probes_are_open_and_all_else_needs_authentication(site: Site) -> None:
    for path in ("/healthz", "/readyz"):
        assert site.ask(path).status == 200
        assert site.ask(path, ("carol", "wrong")).status == 200
    for path in ("/metrics", "/api/v1/cluster", "/api/v1/topics/x", "/no/such/page"):
        refused = site.ask(path)
        assert refused.status == 401
        assert refused.headers["www-authenticate"].startswith("Basic realm=")
        assert "needed" in refused.error
    assert site.ask("/metrics", CAROL).body.startswith(b"# HELP")
    assert site.ask("/no/such/page", CAROL).status == 404


def test_a_refusal_does_not_tell_whether_the_user_exists(site: Site) -> None:
    refusals = {
        (answer.status, answer.error, answer.headers["www-authenticate"])
        for answer in (
            site.ask("/metrics", ("carol", "wrong")),
            site.ask("/metrics", ("nobody", "wrong")),
            site.ask("/metrics", ("carol", "")),
        )
    }
    assert len(refusals) == 1
    assert next(iter(refusals))[0] == 401
    assert "authentication: failed authentication from host = 127.0.0.1 on listener = HTTP: " in (
        site.node.log()
    )
    assert "'nobody'" in site.node.log()


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Basic",
        "Basic !",
        "Basic Y2Fyb2w=",
        "Basic /////w==",
        "Basic Y2Fyb2w6Yy1zZWNyZXR=",  # carol's password, with spare bits
        "Bearer x",
        "x" * 999,
    ],
)
def test_headers_that_say_nothing(site: Site, header: str) -> None:
    assert site.ask("/metrics", header).status == 401
    assert site.ask("/readyz", header).status == 200


def test_permissions_are_those_of_kafka(site: Site, admin: Admin) -> None:
    mine, other = (f"{name}-{uuid.uuid4().hex}" for name in ("mine", "other"))
    admin.create_topics([NewTopic(mine), NewTopic(other)])
    for path in ("/metrics", "/api/v1/cluster", "/api/v1/metadata", "/api/v1/log-directories"):
        refused = site.ask(path, DAVE)
        assert (refused.status, refused.error) == (403, "User:dave may not Describe the cluster")
    assert json.loads(site.ask("/api/v1/topics", DAVE).body)["topics"] == []
    assert "operation = DESCRIBE from host = 127.0.0.1 on resource = Cluster" in site.node.log()
    kind = AclResourceType.TOPIC
    admin.create_acls([AclBinding(kind, mine, "User:dave", AclOperation.DESCRIBE)])
    site.wait_for(f"/api/v1/topics/{mine}", DAVE, 200)
    listed = json.loads(site.ask("/api/v1/topics", DAVE).body)["topics"]
    assert [each["name"] for each in listed] == [mine]
    assert json.loads(site.ask(f"/api/v1/topics/{mine}", DAVE).body)["configs"] is None
    for name in (other, "there-is-none"):
        assert site.ask(f"/api/v1/topics/{name}", DAVE).status == 403
    admin.create_acls(
        [
            AclBinding(kind, mine, "User:dave", AclOperation.DESCRIBE_CONFIGS),
            AclBinding(AclResourceType.CLUSTER, CLUSTER, "User:dave", AclOperation.DESCRIBE),
        ]
    )
    site.wait_for("/metrics", DAVE, 200)
    assert json.loads(site.ask(f"/api/v1/topics/{mine}", DAVE).body)["configs"] == {}
    assert mine in {
        each["name"] for each in json.loads(site.ask("/api/v1/topics", CAROL).body)["topics"]
    }


def test_certificates_name_clients(site: Site, admin: Admin, tmp_path: Path) -> None:
    def issued(unit: str, by: trustme.CA = site.node.authority) -> Path:
        return keystore(
            by, tmp_path / "own.pem", "c", organization_name="m", organization_unit_name=unit
        )

    refused = site.ask("/metrics", own=issued("scraper"))
    assert refused.error == "User:scraper-client may not Describe the cluster"
    admin.create_acls(
        [AclBinding(AclResourceType.CLUSTER, CLUSTER, "User:scraper-client", AclOperation.DESCRIBE)]
    )
    own = issued("scraper")
    until(lambda: site.ask("/metrics", own=own).status == 200, what="the permission")
    assert site.ask("/metrics", CAROL, own=issued("other")).status == 200, "a password wins"
    assert site.ask("/metrics", own=issued("NOBODY")).status == 401
    with pytest.raises((ssl.SSLError, ConnectionError)):
        site.ask("/metrics", own=issued("scraper", trustme.CA()))
    until(lambda: "client's certificate is refused" in site.node.log(), what="the log")


class Resuming:
    """Asks for a page, a connection each time, with one certificate."""

    def __init__(self, site: Site, own: Path) -> None:
        self._port = site.port
        self._context = site.context(own)
        self.session: ssl.SSLSession | None = None

    def ask(self, session: ssl.SSLSession | None = None) -> tuple[bool, bytes]:
        """Whether the session was resumed, and the answer; nothing when the connection is cut."""
        answer, is_resumed = b"", False
        with (
            suppress(OSError),
            socket.create_connection(("127.0.0.1", self._port), timeout=20) as raw,
            self._context.wrap_socket(raw, server_hostname="127.0.0.1", session=session) as tls,
        ):
            is_resumed = bool(tls.session_reused)
            tls.sendall(b"GET /metrics HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n")
            while chunk := tls.recv(65_536):
                answer += chunk
            self.session = tls.session
        return is_resumed, answer


def test_a_session_is_not_resumed_after_its_certificate_s_end(site: Site, tmp_path: Path) -> None:
    for lifetime_s in (4, 16, 64):  # on a busy machine the first ones may end too early
        end = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=lifetime_s)
        options = {"organization_name": "m", "organization_unit_name": "short", "not_after": end}
        client = Resuming(site, keystore(site.node.authority, tmp_path / "own.pem", "c", **options))
        client.ask()
        session = client.session
        if session is not None and client.ask(session)[1].startswith(b"HTTP/1.1 403 "):
            break
    until(lambda: client.ask() == (False, b""), what="the certificate's end")
    assert client.ask(session) == (True, b"")
    refused = "on listener = HTTP: the client's certificate is refused: certificate has expired"
    assert refused in site.node.log()
    assert site.ask("/metrics", CAROL).status == 200


def test_a_changed_password_is_not_right_any_more(site: Site, admin: Admin) -> None:
    name = f"u{uuid.uuid4().hex}"
    path = "/api/v1/topics"

    def set_password(password: str) -> None:
        upsertion = ScramUpsertion(name, password, ScramMechanism.SCRAM_SHA_256)
        assert set(admin.alter_user_scram_credentials([upsertion]).values()) == {None}

    set_password("first")
    site.wait_for(path, (name, "first"), 200)
    assert site.ask(path, (name, "first")).status == 200, "remembered"
    set_password("second")
    site.wait_for(path, (name, "second"), 200)
    site.wait_for(path, (name, "first"), 401)


def test_guessing_is_stopped_and_known_clients_are_served(site: Site) -> None:
    assert site.ask("/metrics", CAROL).status == 200
    statuses: list[int] = []

    def is_stopped() -> bool:
        # Tries come back with time: how many there are depends on how busy the machine is.
        guess = f"guess-{len(statuses)}"
        statuses.append(site.ask("/metrics", ("carol", guess)).status)
        return statuses[-1] == 429

    begun_s = time.monotonic()
    until(is_stopped, what="guessing is stopped")
    assert set(statuses[:-1]) <= {401}
    assert len(statuses) <= HOSTS_TRIES_PER_S * (BURST_S + time.monotonic() - begun_s) + 2
    assert site.ask("/metrics", CAROL).status == 200
    until(lambda: site.ask("/metrics", ("carol", "wrong")).status == 401, what="tries to come back")


async def test_a_client_of_many_requests(site: Site) -> None:
    """Keep-alive, and many at once."""
    headers = {"Authorization": aiohttp.encode_basic_auth(*CAROL)}
    connector = aiohttp.TCPConnector(ssl=site.context(), limit=10)
    async with aiohttp.ClientSession(connector=connector, headers=headers) as session:
        for _ in range(20):
            async with session.get(f"{site.url}/api/v1/cluster") as answer:
                assert answer.status == 200
                assert (await answer.json())["broker_id"] == 1


def test_a_scraper_reads_metrics_as_documented(site: Site, admin: Admin) -> None:
    if shutil.which("curl") is None:
        pytest.skip("there is no curl here")
    command = ["curl", "-sS", "--fail", "--cacert", str(site.node.trust_path)]
    command += ["-u", "prometheus:p-secret", f"{site.url}/metrics"]
    upsertion = ScramUpsertion("prometheus", "p-secret", ScramMechanism.SCRAM_SHA_512)
    assert set(admin.alter_user_scram_credentials([upsertion]).values()) == {None}
    permission = "acls create --allow prometheus --operation Describe --cluster"
    ended = run_cli(*permission.split(), "-b", site.node.address("PLAINTEXT"))
    assert ended.status == 0, ended.errors
    site.wait_for("/metrics", ("prometheus", "p-secret"), 200)
    done = subprocess.run(command, capture_output=True, timeout=30, check=True)
    assert b"kafka_server_kafkaserver_brokerstate 3.0" in done.stdout


def test_a_renewed_certificate_is_shown_to_new_connections(site: Site, tmp_path: Path) -> None:
    before = site.certificate()
    renewed = keystore(site.node.authority, tmp_path / "renewed.pem")
    renewed.replace(site.node.home / "http.pem")
    assert site.ask("/readyz").status == 200
    assert site.certificate() != before
    assert "listener HTTP has read its key and trust stores again" in site.node.log()


def test_what_does_not_speak_tls_disturbs_no_other_client(site: Site) -> None:
    plain = http.client.HTTPConnection("127.0.0.1", site.port, timeout=20)
    plain.request("GET", "/readyz")
    with pytest.raises((http.client.HTTPException, ConnectionError)):
        plain.getresponse()
    plain.close()
    assert site.ask("/readyz").status == 200
    until(lambda: "does not speak TLS" in site.node.log(), what="the log says so")


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"moldau.http.ssl.client.auth": "required"}, "moldau.http.ssl.keystore.location"),
        ({"moldau.http.ssl.keystore.location": "/no/such.pem"}, "/no/such.pem: No such file"),
        ({"moldau.http.authentication": "DIGEST"}, "out of BASIC"),
        ({"moldau.http.open.paths": "/api"}, "moldau.http.open.paths"),
        ({"moldau.http.ssl.principal.mapping.rules": "RULE:"}, "neither RULE:"),
    ],
)
def test_settings_that_cannot_work(tmp_path: Path, changed: dict[str, str], complaint: str) -> None:
    values: dict[str, Any] = {"moldau.http.listener": "127.0.0.1:0", **changed}
    ended = run_node(properties(tmp_path, **values))
    assert ended.status in (1, 2)
    assert complaint in ended.complaint
