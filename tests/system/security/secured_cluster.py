"""Real clusters of controllers and brokers that authenticate to one another."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Self
from uuid import uuid4

import trustme

from moldau.config import NodeConfig
from moldau.local.layout import PortHolder, internal_topic_properties
from moldau.local.node_process import NodeProcess, wait_ready_together
from moldau.node.formatting import FormatPlan, format_storage, random_cluster_id
from moldau.node.initial_users import scram_records
from moldau.raft import VoterDescription, VoterEndpoint
from moldau.runtime.clock import SystemClock
from moldau.runtime.filesystem import OsFilesystem
from tests.system.security.nodes import AUTHORIZER, HOST, PLAIN_MODULE, SCRAM_MODULE, keystore

CONTROLLER_IDS: Final = (101, 102, 103)
BROKER_IDS: Final = (1, 2, 3)
NODE_PASSWORD: Final = "n-secret"
USERS: Final = {"admin": "a-secret", "app": "p-secret", "node": NODE_PASSWORD}
"""Those of SCRAM; `node` is what nodes are called that log in by name."""

CERTIFICATES: Final = {
    "listener.security.protocol.map": "CLIENT:SASL_SSL,INTERNAL:SSL,CONTROLLER:SSL",
    "listener.name.internal.ssl.client.auth": "required",
    "listener.name.controller.ssl.client.auth": "required",
}
"""Nodes show certificates to one another."""


def passwords(
    internal: str, controller: str, protocol: str = "SASL_SSL", password: str = NODE_PASSWORD
) -> dict[str, str]:
    """Nodes log in to one another by these mechanisms."""
    mechanisms = {"internal": internal, "controller": controller}
    return {
        "listener.security.protocol.map": (
            f"CLIENT:SASL_SSL,INTERNAL:{protocol},CONTROLLER:{protocol}"
        ),
        "sasl.mechanism.inter.broker.protocol": internal,
        "sasl.mechanism.controller.protocol": controller,
        **{
            f"listener.name.{name}.sasl.enabled.mechanisms": mechanism
            for name, mechanism in mechanisms.items()
        },
        **{
            f"listener.name.{name}.{mechanism.lower()}.sasl.jaas.config": _login(
                mechanism, password
            )
            for name, mechanism in mechanisms.items()
        },
    }


def kerberos_between(jaas: str) -> dict[str, str]:
    """Nodes log in to one another by Kerberos, all with the same login module."""
    return {
        "listener.security.protocol.map": (
            "CLIENT:SASL_SSL,INTERNAL:SASL_SSL,CONTROLLER:SASL_PLAINTEXT"
        ),
        "sasl.mechanism.inter.broker.protocol": "GSSAPI",
        "sasl.mechanism.controller.protocol": "GSSAPI",
        "listener.name.internal.sasl.enabled.mechanisms": "GSSAPI",
        "listener.name.controller.sasl.enabled.mechanisms": "GSSAPI",
        "listener.name.internal.gssapi.sasl.jaas.config": jaas,
        "listener.name.controller.gssapi.sasl.jaas.config": jaas,
    }


def _login(mechanism: str, password: str) -> str:
    own = f'username="node" password="{password}"'
    if mechanism == "PLAIN":
        return f'{PLAIN_MODULE} required {own} user_node="{NODE_PASSWORD}";'
    return f"{SCRAM_MODULE} required {own};"


class SecuredCluster:
    """Controllers and brokers, clients by SASL_SSL with SCRAM-SHA-512. Use as a context: starts all
    nodes.

    Args:
        between: CERTIFICATES, or what `passwords` or `kerberos_between` returns.
        controllers, brokers: ids; those in both are both in one process.
        foreign: nodes that are not ours to start: they get their directory and configuration only.
    """

    def __init__(
        self,
        home: Path,
        between: Mapping[str, str],
        *,
        controllers: Iterable[int] = CONTROLLER_IDS,
        brokers: Iterable[int] = BROKER_IDS,
        changed: Mapping[str, str] | None = None,
        foreign: Iterable[int] = (),
    ) -> None:
        self.home = home
        self.controllers = tuple(controllers)
        self.brokers = tuple(brokers)
        self.authority = trustme.CA()
        self.trust_path = home / "ca.pem"
        self.authority.cert_pem.write_to_path(self.trust_path)
        self._between = between
        self._changed = dict(changed or {})
        self._holder = PortHolder(HOST)
        ids = tuple(dict.fromkeys((*self.controllers, *self.brokers)))
        self._ports = {
            (node_id, name): self._holder.take()[0]
            for group, names in (
                (self.controllers, ("CONTROLLER",)),
                (self.brokers, ("CLIENT", "INTERNAL")),
            )
            for node_id in group
            for name in names
        }
        for node_id in ids:
            (home / f"node-{node_id}").mkdir()
            self.renew(node_id)
            self.write_config(node_id)
        self._format()
        self.nodes = {
            node_id: NodeProcess(self.config_path(node_id), home / f"node-{node_id}" / "node.log")
            for node_id in ids
            if node_id not in foreign
        }

    # -- for clients -----------------------------------------------------------------------------

    @property
    def bootstrap(self) -> str:
        return ",".join(self.address(each, "CLIENT") for each in self.brokers)

    def address(self, node_id: int, listener_name: str) -> str:
        return f"{HOST}:{self.port(node_id, listener_name)}"

    def port(self, node_id: int, listener_name: str) -> int:
        return self._ports[node_id, listener_name]

    def client(self, user: str = "admin") -> dict[str, Any]:
        """A client's settings."""
        return {
            "bootstrap_servers": self.bootstrap,
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": "SCRAM-SHA-512",
            "sasl_username": user,
            "sasl_password": USERS[user],
            "ssl_truststore_location": str(self.trust_path),
        }

    # -- nodes -----------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        for node in self.nodes.values():
            node.start()
        wait_ready_together(self.nodes.values())
        return self

    def __exit__(self, *_: object) -> None:
        for part in (self.brokers, self.controllers):  # brokers say good-bye to a controller
            ours = [self.nodes[node_id] for node_id in part if node_id in self.nodes]
            for node in ours:
                node.ask_to_stop()
            for node in ours:
                node.stop()
        self.close()

    def close(self) -> None:
        """Give the ports back, where the nodes were started one by one."""
        self._holder.close()

    def config_path(self, node_id: int) -> Path:
        return self.home / f"node-{node_id}" / "server.properties"

    def log(self, node_id: int) -> str:
        return self.nodes[node_id].log_path.read_text(encoding="utf-8")

    def renew(self, node_id: int, authority: trustme.CA | None = None) -> None:
        """Put a new certificate in the place of a node's, in one step."""
        path = self.home / f"node-{node_id}" / "keystore.pem"
        new = keystore(
            authority or self.authority, path.with_suffix(".new"), common_name=f"node-{node_id}"
        )
        new.rename(path)

    def write_config(self, node_id: int, changed: Mapping[str, str] | None = None) -> None:
        values = {**self._properties(node_id), **self._changed, **(changed or {})}
        escaped = {key: value.replace("\\", "\\\\") for key, value in values.items()}
        text = "".join(f"{key}={value}\n" for key, value in escaped.items())
        self.config_path(node_id).write_text(text)

    def _properties(self, node_id: int) -> dict[str, str]:
        names = [name for each, name in self._ports if each == node_id]
        here = self.home / f"node-{node_id}"
        values = {
            "process.roles": ",".join(
                role
                for role, group in (("broker", self.brokers), ("controller", self.controllers))
                if node_id in group
            ),
            "node.id": str(node_id),
            "listeners": ",".join(f"{name}://{self.address(node_id, name)}" for name in names),
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.bootstrap.servers": ",".join(
                self.address(each, "CONTROLLER") for each in self.controllers
            ),
            "log.dirs": str(here / "data"),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(here / "keystore.pem"),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.trust_path),
            "ssl.principal.mapping.rules": "RULE:^.*CN=([a-z0-9-]+).*$/$1/,DEFAULT",
            "authorizer.class.name": AUTHORIZER,
            "super.users": ";".join(
                f"User:{name}"
                for name in (
                    "admin",
                    "node",
                    *(f"node-{each}" for each in (*self.controllers, *self.brokers)),
                )
            ),
            "group.initial.rebalance.delay.ms": "0",
            **internal_topic_properties(len(self.brokers)),
        }
        own = ("controller", *(name.lower() for name in names))
        values |= {
            key: value
            for key, value in self._between.items()
            if not key.startswith("listener.name.") or key.split(".")[2] in own
        }
        if "CLIENT" in names:
            values |= {
                "inter.broker.listener.name": "INTERNAL",
                "listener.name.client.sasl.enabled.mechanisms": "SCRAM-SHA-512",
                "listener.name.client.scram-sha-512.sasl.jaas.config": f"{SCRAM_MODULE} required;",
            }
        return values

    def _format(self) -> None:
        source = random.Random(uuid4().int)
        cluster_id = random_cluster_id(source)
        voters = tuple(
            VoterDescription(
                each, uuid4(), (VoterEndpoint("CONTROLLER", HOST, self.port(each, "CONTROLLER")),)
            )
            for each in self.controllers
        )
        users = scram_records(
            [
                f"{mechanism}=[name={name},password={password}]"
                for name, password in USERS.items()
                for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512")
            ],
            source.randbytes,
        )
        for node_id in dict.fromkeys((*self.controllers, *self.brokers)):
            plan = FormatPlan.from_config(
                NodeConfig.load(str(self.config_path(node_id))),
                cluster_id,
                initial_controllers=voters,
                users=users,
            )
            format_storage(OsFilesystem(), SystemClock(), source, plan)
