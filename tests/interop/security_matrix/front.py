"""One node, of ours or of Apache Kafka, with a listener for each way and an ACL for each right.

Owns the node, its users, certificates and tokens. Must not know a client. Invariant: no client but
the administrator may do more than its ACLs say: nodes come by certificates of their own.
"""

from __future__ import annotations

import datetime
import subprocess
import uuid
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

import trustme

from moldau.client import (
    AclBinding,
    AclOperation,
    AclPatternType,
    AclResourceType,
    KafkaError,
    NewTopic,
    ScramMechanism,
    ScramUpsertion,
)
from moldau.client.sync import Admin
from tests.interop.java.jvm import jvm_command
from tests.interop.java.tools import JavaTools
from tests.interop.security_matrix.access import (
    CLIENT_CREDENTIALS,
    MTLS,
    SIGNED,
    TOKEN,
    UNSECURED,
    WAYS,
    Access,
    Way,
)
from tests.kit.identity_provider import (
    AUDIENCE,
    CLIENT_ID,
    CLIENT_SECRET,
    ISSUER,
    IdentityProvider,
    claims_of,
    unsecured,
)
from tests.kit.waiting import until
from tests.system.security.nodes import (
    AUTHORIZER,
    PLAIN_MODULE,
    SCRAM_MODULE,
    SecuredNode,
    keystore,
)

OPEN: Final = "open"
"""What names of topics, groups and transactional ids begin with that every way's user may use."""

CLOSED: Final = "closed"
"""A topic and a group that only the administrator may use."""

ALLOWED_URLS: Final = "org.apache.kafka.sasl.oauthbearer.allowed.urls"
ALLOWED_FILES: Final = "org.apache.kafka.sasl.oauthbearer.allowed.files"
BEARER: Final = "org.apache.kafka.common.security.oauthbearer"
BEARER_MODULE: Final = f"{BEARER}.OAuthBearerLoginModule required"
EXPIRED: Final = "expired certificate"
FOREIGN: Final = "certificate of another authority"
GOOD, BAD = "good.jwt", "bad.jwt"
KAFKA_DEADLINE_S: Final = 120.0
ADMIN: Final = Way("SASL_SSL", "SASL_SSL", "admin", "PLAIN", "x-secret")


def config(provider: IdentityProvider) -> dict[str, str]:
    """What the node needs beside `SecuredNode`'s configuration."""
    url = "sasl.oauthbearer.jwks.endpoint.url"
    rules = "RULE:^OU=([a-z]+),O=moldau$/$1-client/,DEFAULT"
    users = " ".join(
        f'user_{each.user}="{each.password}"'
        for each in (ADMIN, WAYS["PLAIN"], Way("", "", "mallory", password="m-secret"))
    )
    keys = {
        "listener.security.protocol.map": "PLAINTEXT:SSL,CONTROLLER:SSL,SSL:SSL,MTLS:SSL,"
        "SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL",
        "listener.name.plaintext.ssl.enabled.protocols": "TLSv1.2",
        "inter.broker.listener.name": "MTLS",
        "ssl.principal.mapping.rules": rules,
        "listener.name.mtls.ssl.principal.mapping.rules": rules,
        "authorizer.class.name": AUTHORIZER,
        "super.users": "User:admin;User:nodes-client",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
        f"listener.name.sasl_ssl.oauthbearer.{url}": provider.url,
        "listener.name.sasl_ssl.oauthbearer.sasl.jaas.config": f"{BEARER_MODULE};",
        "listener.name.sasl_ssl.oauthbearer.sasl.server.callback.handler.class": (
            f"{BEARER}.OAuthBearerValidatorCallbackHandler"
        ),
        "listener.name.sasl_plaintext.oauthbearer.sasl.jaas.config": (
            f'{BEARER_MODULE} unsecuredLoginStringClaim_sub="node";'
        ),
        "moldau.sasl.oauthbearer.allowed.urls": provider.url,
        "sasl.oauthbearer.expected.issuer": ISSUER,
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "delegation.token.secret.key": "the-key-of-all-nodes",
        "connection.failed.authentication.delay.ms": "10",
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.num.partitions": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "log.index.size.max.bytes": "65536",
    }
    for name in ("sasl_ssl", "sasl_plaintext"):
        keys[f"listener.name.{name}.plain.sasl.jaas.config"] = f"{PLAIN_MODULE} required {users};"
        for mechanism in ("scram-sha-256", "scram-sha-512"):
            keys[f"listener.name.{name}.{mechanism}.sasl.jaas.config"] = f"{SCRAM_MODULE} required;"
    return keys


def java_options(home: Path, provider: IdentityProvider) -> list[str]:
    """What a JVM of Apache Kafka may read tokens and keys from; its default is nothing."""
    files = [home / GOOD, home / BAD]
    urls = [provider.url, provider.token_url, *(each.as_uri() for each in files)]
    return [
        f"-D{ALLOWED_URLS}={','.join(urls)}",
        f"-D{ALLOWED_FILES}={','.join(map(str, files))}",
    ]


class Front:
    """What clients need to know of the node that runs. Made by `running`."""

    def __init__(self, node: SecuredNode, provider: IdentityProvider) -> None:
        self.provider = provider
        self._node = node
        self._home = node.home
        self._foreign = trustme.CA()
        self._foreign_trust = self._home / "foreign-ca.pem"
        self._foreign.cert_pem.write_to_path(self._foreign_trust)
        self._certificates: dict[str, Path] = {}
        self.admin: Admin
        self._token = ("", "")

    def access(self, name: str) -> Access:
        """The access of a way, with good credentials."""
        way = WAYS[name]
        access = self._access_of(way)
        if name == MTLS:
            return replace(access, certificate=self.certificate(MTLS))
        if name == SIGNED:
            return self._with_bearer(access, self.provider.signer.token(claims_of(way.user)))
        if name == UNSECURED:
            made_up = unsecured(claims_of(way.user))
            return replace(self._with_bearer(access, made_up), unsecured=way.user)
        if name == CLIENT_CREDENTIALS:
            return replace(
                access, name=CLIENT_ID, password=CLIENT_SECRET, token_url=self.provider.token_url
            )
        if name == TOKEN:
            token_id, secret = self._token
            return replace(access, name=token_id, password=secret, is_token=True)
        return access

    def refused(self, fault: str) -> Access:
        """The access of a client that comes wrongly: a key of `FAULTS`."""
        return FAULTS[fault].access(self)

    def certificate(self, kind: str) -> Path:
        """A client's key store: good, expired, or of another authority."""
        if kind not in self._certificates:
            authority = self._foreign if kind == FOREIGN else self._node.authority
            now = datetime.datetime.now(datetime.UTC)
            times = {"not_before": now - datetime.timedelta(days=2)}
            if kind == EXPIRED:
                times["not_after"] = now - datetime.timedelta(days=1)
            path = self._home / f"client-{len(self._certificates)}.pem"
            self._certificates[kind] = keystore(
                authority,
                path,
                "client",
                organization_name="moldau",
                organization_unit_name="orders",
                **times,
            )
        return self._certificates[kind]

    def untrusting(self, access: Access) -> Access:
        """The same for a client that trusts another authority than the node's."""
        return replace(access, trust=self._foreign_trust)

    def expired_bearer(self) -> Access:
        token = self.provider.signer.token(claims_of("erin", age_s=600, left_s=-300))
        return self._with_bearer(self._access_of(WAYS[SIGNED]), token, BAD)

    def address(self, listener: str) -> str:
        return self._node.address(listener)

    def topic(self, prefix: str = OPEN) -> str:
        """A new topic with one partition."""
        name = f"{prefix}-{uuid.uuid4().hex[:12]}"
        self.admin.create_topics([NewTopic(name, partition_count=1)])
        return name

    def settings_of_admin(self) -> Access:
        return self._access_of(ADMIN)

    def user(self, name: str, password: str) -> Access:
        """The access of another user of PLAIN."""
        return replace(self._access_of(ADMIN), name=name, password=password)

    def prepare(self) -> None:
        """Users, rights, the closed topic, and a delegation token."""
        scram = {
            way.user: ScramUpsertion(way.user, way.password, SCRAM[way.mechanism])
            for way in WAYS.values()
            if way.mechanism in SCRAM and way.password
        }
        assert set(self.admin.alter_user_scram_credentials([*scram.values()]).values()) == {None}
        self.admin.create_acls(list(_acls()))
        until(lambda: len(self.admin.describe_acls()) == len(list(_acls())), what="the ACLs")
        self.admin.create_topics([NewTopic(CLOSED, partition_count=1)])
        token = self.admin.create_delegation_token(owner=f"User:{WAYS[TOKEN].user}")
        self._token = (token.token_id, b64encode(token.hmac).decode())

    def _access_of(self, way: Way) -> Access:
        return Access(
            bootstrap=self._node.address(way.listener),
            protocol=way.protocol,
            trust=self._node.trust_path if "SSL" in way.protocol else None,
            mechanism=way.mechanism,
            name=way.user if way.mechanism else "",
            password=way.password,
        )

    def _with_bearer(self, access: Access, token: str, name: str = GOOD) -> Access:
        path = self._home / name
        path.write_text(token)
        return replace(access, bearer=token, bearer_path=path)


SCRAM: Final = {
    "SCRAM-SHA-256": ScramMechanism.SCRAM_SHA_256,
    "SCRAM-SHA-512": ScramMechanism.SCRAM_SHA_512,
}


class Fault(NamedTuple):
    """A client that must be refused: how it comes, and what is wrong with that."""

    way: str
    access: Callable[[Front], Access]


def _password(way: str, wrong: str = "wrong") -> Fault:
    return Fault(way, lambda front: replace(front.access(way), password=wrong))


def _certificate(kind: str) -> Fault:
    return Fault(
        MTLS, lambda front: replace(front.access(MTLS), certificate=front.certificate(kind))
    )


FAULTS: Final[Mapping[str, Fault]] = {
    "the client trusts another authority": Fault(
        "SSL", lambda front: front.untrusting(front.access("SSL"))
    ),
    "no TLS at a TLS listener": Fault(
        "SSL", lambda front: replace(front.access("SSL"), protocol="PLAINTEXT", trust=None)
    ),
    "no certificate (mTLS)": Fault(
        MTLS, lambda front: replace(front.access(MTLS), certificate=None)
    ),
    "expired certificate (mTLS)": _certificate(EXPIRED),
    "certificate of another authority (mTLS)": _certificate(FOREIGN),
    "wrong password (PLAIN)": _password("PLAIN"),
    "wrong password (SCRAM-SHA-256)": _password("SCRAM-SHA-256"),
    "wrong password (SCRAM-SHA-512)": _password("SCRAM-SHA-512"),
    "expired token (OAUTHBEARER)": Fault(SIGNED, Front.expired_bearer),
    "wrong secret (delegation token)": _password(TOKEN, "d3Jvbmc="),
}
"""Each way by its name in the table."""


def _acls() -> Iterator[AclBinding]:
    """The least that clients and tools need. What is closed has none."""
    cluster = (
        AclOperation.ALTER,
        AclOperation.ALTER_CONFIGS,
        AclOperation.DESCRIBE,
        AclOperation.DESCRIBE_CONFIGS,
    )
    rights = (
        (AclResourceType.TOPIC, AclOperation.READ),
        (AclResourceType.TOPIC, AclOperation.WRITE),
        (AclResourceType.TOPIC, AclOperation.CREATE),
        (AclResourceType.TOPIC, AclOperation.DELETE),
        (AclResourceType.TOPIC, AclOperation.DESCRIBE_CONFIGS),
        (AclResourceType.GROUP, AclOperation.READ),
        (AclResourceType.TRANSACTIONAL_ID, AclOperation.WRITE),
    )
    for user in sorted({way.user for way in WAYS.values()}):
        for kind, operation in rights:
            yield AclBinding(
                kind, OPEN, f"User:{user}", operation, pattern_type=AclPatternType.PREFIXED
            )
        for operation in cluster:
            yield AclBinding(AclResourceType.CLUSTER, "kafka-cluster", f"User:{user}", operation)


@contextmanager
def running(
    home: Path, provider: IdentityProvider, java: JavaTools | None = None
) -> Iterator[Front]:
    """A node that serves every way: ours, or Apache Kafka's where `java` is given to format it."""
    node = SecuredNode(home, config(provider))
    keystore(
        node.authority,
        node.keystore,
        organization_name="moldau",
        organization_unit_name="nodes",
    )
    with open(node.config_path, "a", encoding="utf-8") as file:
        for key in ("ssl.client.auth=required", f"ssl.truststore.location={node.trust_path}",
                    "ssl.truststore.type=PEM"):  # fmt: skip
            file.write(f"listener.name.controller.{key}\n")
        # As a client of its listeners, the node trusts the authority too.
        file.write(f"ssl.truststore.type=PEM\nssl.truststore.location={node.trust_path}\n")
    with node if java is None else _kafka(node, provider, java):
        front = Front(node, provider)
        access = front.settings_of_admin()
        with Admin(
            access.bootstrap,
            security_protocol=access.protocol,
            ssl_truststore_location=str(access.trust),
            sasl_mechanism=access.mechanism,
            sasl_username=access.name,
            sasl_password=access.password,
        ) as admin:
            front.admin = admin
            front.prepare()
            yield front


@contextmanager
def _kafka(node: SecuredNode, provider: IdentityProvider, java: JavaTools) -> Iterator[None]:
    """Apache Kafka with the node's configuration, on its ports."""
    java.check(
        "kafka-storage", "format", "--standalone", "-t", uuid.uuid4().hex[:22], "-c",
        node.config_path,
    )  # fmt: skip
    options = java_options(node.home, provider)
    with node.log_path.open("wb") as log:
        process = subprocess.Popen(
            jvm_command("kafka.Kafka", str(node.config_path), heap_mib=384, options=options),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        until(
            lambda: _answers(node, process),
            what="Apache Kafka serves",
            deadline_s=KAFKA_DEADLINE_S,
        )
        yield
    finally:
        process.kill()
        process.wait()


def _answers(node: SecuredNode, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None, node.log()[-3000:]
    try:
        with Admin(
            node.address("SASL_SSL"),
            security_protocol="SASL_SSL",
            sasl_mechanism="PLAIN",
            sasl_username=ADMIN.user,
            sasl_password=ADMIN.password,
            **node.trust,
        ) as admin:
            return bool(admin.describe_cluster().brokers)
    except KafkaError:
        return False
