"""Certificates between brokers that move to another authority while the brokers run (KIP-226)."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest
import trustme

from moldau.client import ConfigChange, ConfigResource, ConfigResourceType, InvalidRequest
from moldau.client.sync import Admin
from tests.kit.waiting import until
from tests.system.security.nodes import HOST, keystore
from tests.system.security.secured_cluster import (
    BROKER_IDS,
    CERTIFICATES,
    CONTROLLER_IDS,
    SecuredCluster,
)
from tests.system.security.test_between_nodes import shown_by, use

KEY_STORE = "listener.name.internal.ssl.keystore.location"
TRUST_STORE = "listener.name.internal.ssl.truststore.location"


def alter(cluster: SecuredCluster, broker_id: int, key: str, path: Path) -> None:
    with Admin(**cluster.client()) as admin:
        resource = ConfigResource(ConfigResourceType.BROKER, str(broker_id))
        admin.alter_configs({resource: [ConfigChange(key, str(path))]})


def shows(cluster: SecuredCluster, broker_id: int, store: Path) -> bool:
    """Whether the broker shows other brokers the certificate of a key store."""
    shown = ssl.DER_cert_to_PEM_cert(shown_by(cluster, broker_id))
    return shown.strip() in store.read_text()


def is_let_in(cluster: SecuredCluster, broker_id: int, trust: Path, own: Path) -> bool:
    """Whether a client with that certificate may speak to the broker's listener for brokers."""

    async def greeted() -> bool:
        context = ssl.create_default_context(cafile=str(trust))
        context.load_cert_chain(own)
        port = cluster.port(broker_id, "INTERNAL")
        try:
            reader, writer = await asyncio.open_connection(HOST, port, ssl=context)
            # In TLS 1.3 a refusal comes behind the handshake; ApiVersions v0 is answered if none.
            writer.write(b"\0\0\0\x0c\0\x12\0\0\0\0\0\x07\0\x02me")
            async with asyncio.timeout(30):
                answer = await reader.read(4)
            writer.transport.abort()
        except OSError:
            return False
        return len(answer) == 4

    return asyncio.run(greeted())


def test_the_old_authority_is_taken_away(tmp_path: Path) -> None:
    newer = trustme.CA()
    new_trust, both = tmp_path / "new-ca.pem", tmp_path / "both-ca.pem"
    newer.cert_pem.write_to_path(new_trust)
    with SecuredCluster(
        tmp_path,
        CERTIFICATES,
        controllers=CONTROLLER_IDS[:1],
        brokers=BROKER_IDS[:2],
        changed={"ssl.allow.dn.changes": "true"},  # the test's authorities put noise into subjects
    ) as cluster:
        both.write_bytes(cluster.trust_path.read_bytes() + new_trust.read_bytes())
        stores = {
            each: keystore(newer, tmp_path / f"new-{each}.pem", common_name=f"node-{each}")
            for each in cluster.brokers
        }
        use(cluster)
        # A broker that would refuse one like itself is not made.
        for key, path in ((KEY_STORE, stores[1]), (TRUST_STORE, new_trust)):
            with pytest.raises(InvalidRequest, match="nodes with these settings refuse"):
                alter(cluster, 1, key, path)
        # One step on all brokers before the next: at no time does one refuse another.
        for key, paths in (
            (TRUST_STORE, dict.fromkeys(cluster.brokers, both)),
            (KEY_STORE, stores),
            (TRUST_STORE, dict.fromkeys(cluster.brokers, new_trust)),
        ):
            for broker_id in cluster.brokers:
                alter(cluster, broker_id, key, paths[broker_id])
        old = tmp_path / f"node-{BROKER_IDS[1]}" / "keystore.pem"
        for broker_id in cluster.brokers:
            until(lambda each=broker_id: shows(cluster, each, stores[each]), what="the new one")  # type: ignore[misc]
            until(
                lambda each=broker_id: not is_let_in(cluster, each, new_trust, old),  # type: ignore[misc]
                what="the old authority is not trusted any more",
            )
            assert is_let_in(cluster, broker_id, new_trust, stores[broker_id])
        # Each broker in turn is down, so that the one that runs opens its connections again.
        for broker_id in cluster.brokers:
            node = cluster.nodes[broker_id]
            node.stop()
            node.start()
            node.wait_ready()
            use(cluster)
        for node_id in cluster.nodes:
            assert "no connection of listener" not in cluster.log(node_id)
