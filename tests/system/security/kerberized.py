"""A real node whose clients come by Kerberos, and the principals of its realm."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.kit.kerberos import HOST, SERVICE, Realm, running_realm
from tests.system.security.nodes import AUTHORIZER, SecuredNode

RULES: Final = "RULE:[2:$1-$2@$0](bob-.*)s/-admin@.*/_boss/,DEFAULT"
SESSION_MS: Final = 5_000
"""How long a session at SASL_SSL lasts. A client that comes again within a second is refused."""


@dataclass(frozen=True, slots=True)
class Kerberized:
    """A running realm and node. Principals: alice, who may do everything, by keytab and password
    (which is her name); bob/admin, whom the node calls bob_boss, by keytab.
    """

    realm: Realm
    node: SecuredNode
    alice: Path
    bob: Path

    def client(self, listener: str = "SASL_PLAINTEXT", **more: Any) -> dict[str, Any]:
        """Settings of a client of ours."""
        trust = self.node.trust if listener == "SASL_SSL" else {}
        return {
            "bootstrap_servers": self.node.address(listener),
            "security_protocol": listener,
            "sasl_mechanism": "GSSAPI",
            "sasl_kerberos_service_name": "kafka",
            **trust,
            **more,
        }

    def by_keytab(self, principal: str = "alice", listener: str = "SASL_PLAINTEXT") -> Any:
        keytab = self.alice if principal == "alice" else self.bob
        return self.client(
            listener, sasl_kerberos_principal=principal, sasl_kerberos_keytab=str(keytab)
        )


@contextmanager
def kerberized(home: Path) -> Iterator[Kerberized]:
    """The test is skipped where there is no KDC or no package gssapi."""
    with running_realm(home) as realm:
        alice, bob = home / "alice.keytab", home / "bob.keytab"
        realm.add("alice")
        realm.export("alice", alice)
        realm.add("bob/admin", bob)
        listeners = ("sasl_plaintext", "sasl_ssl")
        changed = {
            "authorizer.class.name": AUTHORIZER,
            "super.users": "User:ANONYMOUS;User:alice",
            "sasl.enabled.mechanisms": "PLAIN,GSSAPI",
            "sasl.kerberos.service.name": "kafka",
            "sasl.kerberos.principal.to.local.rules": RULES,
            "listener.name.sasl_ssl.gssapi.connections.max.reauth.ms": str(SESSION_MS),
            **{
                f"listener.name.{name}.gssapi.sasl.jaas.config": realm.jaas(SERVICE, realm.keytab)
                for name in listeners
            },
        }
        (home / "node").mkdir()
        with SecuredNode(home / "node", changed, host=HOST) as node:
            yield Kerberized(realm, node, alice, bob)
