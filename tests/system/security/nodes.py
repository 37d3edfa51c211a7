"""A real node whose clients come by TLS and SASL, and what they need for it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import trustme
from cryptography.hazmat.primitives import serialization

from moldau.local.layout import PortHolder
from moldau.local.node_process import NodeProcess

HOST = "127.0.0.1"
PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
PASSWORD = "a-secret"


def keystore(authority: trustme.CA, path: Path, *names: str, **options: Any) -> Path:
    """A PEM key store with a new certificate, its key as PKCS8: Kafka takes no other."""
    leaf = authority.issue_cert(*(names or ("localhost", HOST)), **options)
    key = serialization.load_pem_private_key(leaf.private_key_pem.bytes(), None).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    path.write_bytes(key + b"".join(each.bytes() for each in leaf.cert_chain_pems))
    return path


class SecuredNode:
    """One combined node with a listener of each protocol, PLAINTEXT for nodes. Use as a context.

    Args:
        host: where its listeners are, and what it is advertised as.

    Attributes:
        trust: what a client of ours needs to trust the node.
    """

    def __init__(
        self, home: Path, changed: Mapping[str, str] | None = None, host: str = HOST
    ) -> None:
        self.home = home
        self._host = host
        self.authority = trustme.CA()
        self.keystore = keystore(self.authority, home / "broker.pem")
        self.trust_path = home / "ca.pem"
        self.authority.cert_pem.write_to_path(self.trust_path)
        self.trust: dict[str, Any] = {"ssl_truststore_location": str(self.trust_path)}
        self._holder = PortHolder(HOST)
        self._ports = dict(
            zip(
                ("PLAINTEXT", "CONTROLLER", "SSL", "MTLS", "SASL_PLAINTEXT", "SASL_SSL"),
                self._holder.take(6),
                strict=True,
            )
        )
        self.config_path = home / "server.properties"
        self._write({**self._properties(), **(changed or {})})
        self.log_path = home / "node.log"
        self.process = NodeProcess(
            self.config_path, self.log_path, ["--announce", "--format-if-needed"]
        )

    def address(self, listener_name: str) -> str:
        return f"{self._host}:{self._ports[listener_name]}"

    def port(self, listener_name: str) -> int:
        return self._ports[listener_name]

    def log(self) -> str:
        return self.log_path.read_text(encoding="utf-8")

    def __enter__(self) -> Self:
        self.process.start()
        self.process.wait_ready()
        return self

    def __exit__(self, *_: object) -> None:
        self.process.stop()
        self._holder.close()

    def _properties(self) -> dict[str, str]:
        listeners = ",".join(f"{name}://{self.address(name)}" for name in self._ports)
        return {
            "process.roles": "broker,controller",
            "node.id": "1",
            "listeners": listeners,
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SSL:SSL,"
            "MTLS:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.bootstrap.servers": self.address("CONTROLLER"),
            "log.dirs": str(self.home / "data"),
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "1",
            "group.initial.rebalance.delay.ms": "0",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.keystore),
            "listener.name.mtls.ssl.client.auth": "required",
            "listener.name.mtls.ssl.truststore.type": "PEM",
            "listener.name.mtls.ssl.truststore.location": str(self.trust_path),
            "listener.name.mtls.ssl.principal.mapping.rules": (
                "RULE:^OU=([a-z]+),O=.*$/$1-client/,DEFAULT"
            ),
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
            **{
                f"listener.name.{name}.plain.sasl.jaas.config": (
                    f'{PLAIN_MODULE} required user_alice="{PASSWORD}" user_bob="b-secret";'
                )
                for name in ("sasl_ssl", "sasl_plaintext")
            },
        }

    def _write(self, values: Mapping[str, str]) -> None:
        escaped = {key: value.replace("\\", "\\\\") for key, value in values.items()}
        self.config_path.write_text("".join(f"{k}={v}\n" for k, v in escaped.items()))
