"""A cluster under faults whose nodes show certificates to one another, and whose clients log in.

Owns the certificates and the users. Clients come by SASL_SSL with SCRAM, as users that only ACLs
let read and write; nodes talk by mTLS; one PLAINTEXT listener is for the test's own questions.
While the cluster suffers, `Rotation` gives nodes new certificates and clients new users, changes a
password again and again, and tries it. Must not: judge the load. Invariant: a user is handed to
clients only when every broker lets it in.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import ssl
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Self

from benchmarks.wire import Wire
from moldau.client import (
    AclBinding,
    AclOperation,
    AclResourceType,
    Admin,
    KafkaError,
    ScramMechanism,
    ScramUpsertion,
)
from moldau.local.certificate_authority import CertificateAuthority
from moldau.runtime.authentication import AuthenticationError
from moldau.runtime.clock import SystemClock
from moldau.runtime.connection import Connection
from moldau.runtime.network import AsyncioNetwork
from moldau.sasl.scram import ScramLogin
from tests.kit.servers import Servers, plain_of
from tests.kit.soaks import Say
from tests.kit.waiting import until
from tests.system.quorum.hosts import Hosts
from tests.system.quorum.spread_cluster import BROKER_PORT, CONTROLLER_PORT, host_name
from tests.system.replication.chaos_cluster import ChaosCluster

CLIENT_PORT: Final = 9094
INTERNAL_PORT: Final = 9095
MECHANISM: Final = "SCRAM-SHA-256"
PAUSE_S: Final = (2.0, 6.0)
ANSWER_MS: Final = 5_000
CONNECT_MS: Final = 3_000
#: Longer than any fault.
FOLLOWED_S: Final = 90.0
TOPIC, GROUP = AclResourceType.TOPIC, AclResourceType.GROUP
RIGHTS: Final = (
    (TOPIC, AclOperation.READ),
    (TOPIC, AclOperation.WRITE),
    (GROUP, AclOperation.READ),
    (GROUP, AclOperation.DESCRIBE),
    (AclResourceType.TRANSACTIONAL_ID, AclOperation.WRITE),
)


class SecuredChaosCluster(ChaosCluster):
    """A ChaosCluster that is secured. Use as a context, inside Hosts."""

    def __init__(self, hosts: Hosts, directory: Path, *arguments: Any, **options: Any) -> None:
        super().__init__(hosts, directory, *arguments, **options)
        self._authority = CertificateAuthority.create(directory / "authority", "chaos")
        self._context = ssl.create_default_context(cafile=str(self.trust))
        #: Whom clients log in as from now on.
        self.user = ""
        self._passwords: dict[str, str] = {}

    @property
    def trust(self) -> Path:
        """What clients trust."""
        return self._authority.certificate_path

    @property
    def bootstrap(self) -> str:
        addresses = [self.hosts.address(host_name(each)) for each in self.broker_ids]
        return Servers.of(
            ",".join(f"{each}:{CLIENT_PORT}" for each in addresses),
            ",".join(f"{each}:{BROKER_PORT}" for each in addresses),
            self._settings,
        )

    def _settings(self) -> Mapping[str, str]:
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": MECHANISM,
            "sasl.username": self.user,
            "sasl.password": self._passwords[self.user],
            "ssl.ca.location": str(self.trust),
        }

    def own_config(self, node_id: int) -> dict[str, str]:
        address = self.hosts.address(host_name(node_id))
        store = self.home(node_id) / "certificate.pem"
        if not store.exists():
            self._authority.issue(store, f"n{node_id}", "nodes", [address])
        secured = {
            "listener.security.protocol.map": (
                "PLAINTEXT:PLAINTEXT,CLIENT:SASL_SSL,INTERNAL:SSL,CONTROLLER:SSL"
            ),
            "listener.name.client.sasl.enabled.mechanisms": MECHANISM,
            "ssl.keystore.location": str(store),
            "ssl.truststore.location": str(self.trust),
            "listener.name.internal.ssl.client.auth": "required",
            "listener.name.controller.ssl.client.auth": "required",
            "ssl.principal.mapping.rules": "RULE:^CN=[^,]+,OU=nodes$/nodes/,DEFAULT",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:nodes;User:ANONYMOUS",
        }
        if node_id in self.broker_ids:
            secured["inter.broker.listener.name"] = "INTERNAL"
            secured["listeners"] = (
                f"PLAINTEXT://{address}:{BROKER_PORT},CLIENT://{address}:{CLIENT_PORT},"
                f"INTERNAL://{address}:{INTERNAL_PORT}"
            )
        return {**super().own_config(node_id), **secured}

    def wire(self, node_id: int) -> Wire:
        if node_id not in self.controller_ids:
            return super().wire(node_id)
        context = ssl.create_default_context(cafile=str(self.trust))
        context.load_cert_chain(self.home(node_id) / "certificate.pem")
        address = self.hosts.address(host_name(node_id))

        def secured() -> Wire:
            wire = Wire(address, CONTROLLER_PORT)
            wire.socket = context.wrap_socket(wire.socket, server_hostname=address)
            return wire

        return self.hosts.from_hub(secured)

    def __enter__(self) -> Self:
        super().__enter__()
        try:
            self.add_user("load-0", "first")
        except BaseException:
            super().__exit__(None, None, None)
            raise
        return self

    # -- what changes ----------------------------------------------------------------------------

    def renew(self, node_id: int) -> None:
        """Give a node a new certificate, which it takes by itself."""
        self._authority.renew(self.home(node_id) / "certificate.pem")

    def add_user(self, name: str, password: str) -> None:
        """Clients log in as this user from now on; one that may read and write all topics. Raises:
        KafkaError, TimeoutError.
        """
        bindings = [AclBinding(kind, "*", f"User:{name}", right) for kind, right in RIGHTS]

        async def add(admin: Admin) -> None:
            await admin.create_acls(bindings)

        self.set_password(name, password)
        self._asked(add)
        self.wait_followed()
        self._passwords[name] = password
        self.user = name

    def set_password(self, name: str, password: str) -> None:
        """Raises: KafkaError, TimeoutError."""
        kind = ScramMechanism[MECHANISM.replace("-", "_")]

        async def change(admin: Admin) -> None:
            changed = await admin.alter_user_scram_credentials(
                [ScramUpsertion(name, password, kind)]
            )
            for error in changed.values():
                if error is not None:
                    raise error

        self._asked(change)

    def wait_followed(self) -> None:
        """Wait until every broker has the metadata that are committed now. Raises: TimeoutError."""
        wanted = -1

        def applied() -> list[int]:
            told = [self.metadata(each) for each in self.broker_ids]
            return [each["last_applied_offset"] for each in told if each]

        def told() -> bool:
            # A controller that leads since a moment ago may know of less than brokers do.
            nonlocal wanted
            described = [self._describe_quorum(each) for each in self.broker_ids]
            known = [each.high_watermark for each in described if each is not None]
            wanted = max((*known, *(offset + 1 for offset in applied())), default=0)
            return bool(known) and wanted > 0

        def followed() -> bool:
            offsets = applied()
            return len(offsets) == len(self.broker_ids) and min(offsets) >= wanted - 1

        until(told, what="the high watermark of the metadata", deadline_s=FOLLOWED_S)
        until(followed, what=f"all brokers at {wanted}", deadline_s=FOLLOWED_S)

    def lets_in(self, broker_id: int, name: str, password: str) -> bool | None:
        """Whether a broker takes that password; None when it does not answer."""
        address = self.hosts.address(host_name(broker_id))
        login = ScramLogin(MECHANISM, name, password)

        async def try_it() -> bool | None:
            try:
                connection = await Connection.connect(
                    AsyncioNetwork(),
                    address,
                    CLIENT_PORT,
                    clock=SystemClock(),
                    ssl_context=self._context,
                    authenticator=login.authenticate,
                    connect_timeout_ms=CONNECT_MS,
                )
            except AuthenticationError:
                return False
            except (OSError, TimeoutError):
                return None
            connection.close()
            return True

        return self.hosts.from_hub(lambda: asyncio.run(try_it()))

    def _asked(self, work: Callable[[Admin], Awaitable[None]]) -> None:
        plain = plain_of(self.bootstrap)

        async def ask() -> None:
            async with Admin(plain, request_timeout_ms=ANSWER_MS) as admin:
                await work(admin)

        self.hosts.from_hub(lambda: asyncio.run(ask()))


@contextlib.contextmanager
def rotating(cluster: ChaosCluster, seed: int, say: Say, complaints: list[str]) -> Iterator[None]:
    """What a secured cluster is given during the run; nothing for another one."""
    if not isinstance(cluster, SecuredChaosCluster):
        yield
        return
    with Rotation(cluster, seed, say) as rotation:
        try:
            yield
        finally:
            complaints += rotation.complaints


class Rotation:
    """New certificates, users and passwords, in its own thread. Use as a context."""

    def __init__(self, cluster: SecuredChaosCluster, seed: int, say: Say) -> None:
        self.complaints: list[str] = []
        self.counts: Counter[str] = Counter()
        self._cluster = cluster
        self._dice = random.Random(f"{seed}-rotation")
        #: Of users, none twice: a change that was not answered in time may come about later.
        self._numbers = itertools.count(1)
        self._say = say
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="rotation")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        counts = ", ".join(f"{what} {count}" for what, count in sorted(self.counts.items()))
        self._say(f"rotated: {counts}")

    def _work(self) -> None:
        steps = (self._renew, self._add_user, self._change_password)
        while not self._stop.wait(self._dice.uniform(*PAUSE_S)):
            step = self._dice.choice(steps)
            try:
                step()
            except (KafkaError, TimeoutError, OSError) as error:
                self.counts[f"not done: {type(error).__name__}"] += 1

    def _renew(self) -> None:
        nodes = (*self._cluster.broker_ids, *self._cluster.controller_ids)
        for node_id in self._dice.sample(nodes, self._dice.randint(1, len(nodes))):
            self._cluster.renew(node_id)
            self.counts["certificates"] += 1

    def _add_user(self) -> None:
        self._cluster.add_user(f"load-{next(self._numbers)}", self._password())
        self.counts["users"] += 1

    def _change_password(self) -> None:
        old, new = self._password(), self._password()
        prober = f"prober-{next(self._numbers)}"
        for password in (old, new):
            self._cluster.set_password(prober, password)
        self._cluster.wait_followed()
        for broker_id in self._cluster.broker_ids:
            for password, expected in ((new, True), (old, False)):
                found = self._cluster.lets_in(broker_id, prober, password)
                if found is None:
                    continue
                self.counts["logins tried"] += 1
                if found is not expected:
                    what = "the new password" if expected else "the old password"
                    self.complaints.append(f"broker {broker_id} and {what}: let in {found}")
        self.counts["passwords"] += 1

    def _password(self) -> str:
        return f"{self._dice.getrandbits(64):016x}"
