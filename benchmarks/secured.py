"""A node of ours and Apache Kafka's with TLS listeners, which show the same certificate.

Owns the authority, the key store that both are given, and the settings of TLS. Invariant: both
negotiate the same version and the same suite, which `negotiated` proves.
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import trustme
from cryptography.hazmat.primitives import serialization

from benchmarks.figures import Effort
from benchmarks.nodes import HOST, BrokerNode, KafkaNode, MoldauNode, kafka_jars
from benchmarks.wire import connected

TLS_VERSION: Final = "TLSv1.3"
SUITE: Final = "TLS_AES_256_GCM_SHA384"


class KeyStore(NamedTuple):
    """What the nodes are configured with, and the authority that their clients trust."""

    settings: Mapping[str, str]
    trust_path: str


def key_store(directory: Path) -> KeyStore:
    """A new authority, and a certificate for this host; the key is PKCS8, Kafka takes no other."""
    authority = trustme.CA()
    leaf = authority.issue_cert(HOST)
    key = serialization.load_pem_private_key(leaf.private_key_pem.bytes(), None).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    path, trust_path = directory / "node.pem", directory / "authority.pem"
    path.write_bytes(key + b"".join(each.bytes() for each in leaf.cert_chain_pems))
    authority.cert_pem.write_to_path(trust_path)
    settings = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(path),
        "ssl.enabled.protocols": TLS_VERSION,
        "ssl.cipher.suites": SUITE,
    }
    return KeyStore(settings, str(trust_path))


@contextlib.contextmanager
def secured_nodes(
    effort: Effort, directory: Path, store: KeyStore, settings: Mapping[str, str] | None = None
) -> Iterator[list[BrokerNode]]:
    """Ours, pinned, and Kafka's when it is installed, both running throughout."""
    values = {**store.settings, **(settings or {})}
    with contextlib.ExitStack() as stack:
        (directory / "moldau").mkdir()
        nodes: list[BrokerNode] = [
            MoldauNode(directory / "moldau", values, is_pinned=True, has_tls=True)
        ]
        if effort.with_kafka and kafka_jars() is not None:
            (directory / "kafka").mkdir()
            nodes.append(KafkaNode(directory / "kafka", values, has_tls=True))
        for node in nodes:
            stack.enter_context(node)
        for node in nodes:
            node.connect().socket.close()
            assert negotiated(node, store) == (TLS_VERSION, SUITE), "not what was asked for"
        yield nodes


def negotiated(node: BrokerNode, store: KeyStore) -> tuple[str | None, str | None]:
    """Version and suite of a connection."""
    with connected(HOST, node.tls_port, trust_path=store.trust_path) as found:
        assert isinstance(found, ssl.SSLSocket), "of TLS"
        cipher = found.cipher()
        return found.version(), cipher[0] if cipher is not None else None
