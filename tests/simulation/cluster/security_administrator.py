"""A simulated administrator of access control entries, SCRAM credentials and client quotas.

Owns: what it asks for, in good and in bad requests, again and late, and what the answers say. Must
not: look at images. Invariant: whether it takes part and what it does follow from dice of its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

from moldau.broker.lifecycle.controller_channel import ControllerUnavailable
from moldau.protocol.access_control import Operation, PatternType, PermissionType, ResourceType
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p30_create_acls as p30
from moldau.protocol.messages import p31_delete_acls as p31
from moldau.protocol.messages import p49_alter_client_quotas as p49
from moldau.protocol.messages import p51_alter_user_scram_credentials as p51
from moldau.protocol.messages.p48_describe_client_quotas import EntityData
from moldau.protocol.schema import Message
from tests.kit.seeds import Violation
from tests.simulation.cluster.link import ControllerLink, Undecided
from tests.simulation.cluster.security_ledger import Condition, Entity, SecurityState, does_match
from tests.virtual.loop import Process

if TYPE_CHECKING:
    from tests.simulation.cluster.world import World

PRINCIPALS = ("User:ann", "User:bob", "User:*")
HOSTS = ("*", "*", "10.0.0.1")
NAMES = ("*", "a", "ab", "abc", "b")
KINDS = (ResourceType.TOPIC, ResourceType.GROUP)
PATTERNS = (PatternType.LITERAL, PatternType.PREFIXED)
OPERATIONS = (
    Operation.READ,
    Operation.WRITE,
    Operation.ALL,
    Operation.DESCRIBE,
    Operation.ALTER_CONFIGS,
    Operation.DESCRIBE_CONFIGS,
)
PERMISSIONS = (PermissionType.ALLOW, PermissionType.ALLOW, PermissionType.DENY)
USERS = ("ann", "bob", "cy")
MECHANISMS = (1, 2)
CLIENT_ENTITIES: tuple[Entity, ...] = tuple(
    frozenset(parts)
    for parts in (
        (("user", "ann"), ("client-id", "app")),
        (("user", "ann"), ("client-id", None)),
        (("user", "ann"),),
        (("user", None), ("client-id", "app")),
        (("user", None), ("client-id", None)),
        (("user", None),),
        (("client-id", "app"),),
        (("client-id", None),),
    )
)
IP_ENTITIES: tuple[Entity, ...] = (frozenset({("ip", "10.0.0.1")}), frozenset({("ip", None)}))
CLIENT_QUOTAS = ("consumer_byte_rate", "producer_byte_rate", "request_percentage")
MUTATIONS = "controller_mutation_rate"
"""For named users only: the other clients of the simulation are not to be throttled."""
CONNECTIONS = "connection_creation_rate"

MOST_ITEMS = 3
LATE_MS = (300.0, 3_000.0)
STALE_S = 20.0
"""A controller that stood still for so long, and was deposed, may answer before it hears of that.
"""
UNDECIDED = frozenset(
    {ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_CONTROLLER, ErrorCode.KAFKA_STORAGE_ERROR}
)
"""The last one comes of the only controller while its disk is full."""
GONE_ALREADY = frozenset({ErrorCode.NONE, ErrorCode.RESOURCE_NOT_FOUND})
OK = frozenset({ErrorCode.NONE})


@dataclass
class Item:
    """One part of a request: what its answer may be, and what must be so after each of them."""

    answers: Collection[ErrorCode]
    change: list[Hashable]
    afterwards: dict[ErrorCode, Condition] = field(default_factory=dict)
    what: str = ""


class SecurityAdministrator:
    """One administrator who does one thing after the other."""

    def __init__(self, world: World, number: int, random: Random) -> None:
        self.world = world
        self.random = random
        self.host = f"security-{number}"
        self.process = Process(world.loop, self.host)
        network = world.fabric.port_of(self.process, self.host)
        self._link, self._late_link = (
            ControllerLink(world.loop, network, random, world.controller_addresses, self.host)
            for _ in range(2)
        )
        self._number = 0
        self._marks: deque[tuple[float, int]] = deque([(0.0, 0)])
        """When it asked, and the ledger's moment; all but the first are younger than STALE_S."""
        self.process.spawn(self._run())

    async def _run(self) -> None:
        while True:
            await self.world.loop.elapse(self.random.expovariate(1 / self.world.security_pause_ms))
            if not self.world.clients_may_act:
                continue
            action = self.random.choices(
                (self._create_entries, self._delete_entries, self._alter_users, self._alter_quotas),
                (4, 2, 3, 3),
            )[0]
            try:
                await action()
            except ControllerUnavailable:
                self.world.counts["security_undecided"] += 1

    # -- requests --------------------------------------------------------------------------------

    async def _ask(
        self,
        request: Message,
        items: list[Item],
        codes: Callable[[Any], list[int]],
        filters: Collection[p31.DeleteAclsFilter] = (),
    ) -> None:
        """Send a request, perhaps once more and late, perhaps only late; check the answer.

        Raises:
            ControllerUnavailable: there is none, and none will be waited for.
        """
        world, ledger = self.world, self.world.ledger.security
        changes = [change for item in items for change in item.change]
        since = ledger.mark()
        earliest = self._earliest(since)
        fate = self.random.random()
        if fate < 0.2:
            world.counts["security_late"] += 1
            ledger.asks(changes, list(filters))
            self.process.spawn(self._send_late(request))
            if fate < 0.1:
                raise Undecided("it is on its way for longer than is waited for")
        world.counts["security_requests"] += 1
        ledger.asks(changes, list(filters))
        response = await self._link.send_once(request)
        answers = [ErrorCode.of(each) for each in codes(response)]
        if len(answers) != len(items):
            raise Violation("wrong-answer", f"{len(items)} items, but {response}")
        if UNDECIDED.intersection(answers):
            raise Undecided("no commit in time")
        world.guard(self._take_answers, items, answers, since, earliest)

    def _take_answers(
        self, items: list[Item], answers: list[ErrorCode], since: int, earliest: int
    ) -> None:
        """What one answer says of all items was so at the same moment."""
        counts = self.world.counts
        conditions: list[Condition] = []
        for item, answer in zip(items, answers, strict=True):
            counts[f"security {answer.name}"] += 1
            if answer not in item.answers:
                raise Violation("wrong-answer", f"{item.what}: {answer.name}")
            if answer in item.afterwards:
                conditions.append(item.afterwards[answer])
        is_stale = self.world.ledger.security.acknowledged(
            since,
            earliest,
            "; ".join(item.what for item in items),
            lambda state: all(condition(state) for condition in conditions),
        )
        counts["security_stale_answers"] += is_stale

    def _earliest(self, mark: int) -> int:
        """The moment that answers now may be as old as."""
        marks, now = self._marks, self.world.loop.time()
        marks.append((now, mark))
        while marks[1][0] <= now - STALE_S:
            marks.popleft()
        return marks[0][1]

    async def _send_late(self, request: Message) -> None:
        await self.world.loop.elapse(self.random.uniform(*LATE_MS))
        self.world.note(f"a late {type(request).__name__} of {self.host} leaves")
        try:
            await self._late_link.send_once(request)
        except ControllerUnavailable:
            return

    # -- access control entries ------------------------------------------------------------------

    async def _create_entries(self) -> None:
        drawn = [self._creation() for _ in range(self.random.randint(1, MOST_ITEMS))]
        await self._ask(
            p30.CreateAclsRequest(creations=[creation for creation, _item in drawn]),
            [item for _creation, item in drawn],
            lambda response: [each.error_code for each in response.results],
        )

    def _creation(self) -> tuple[p30.AclCreation, Item]:
        choice = self.random.choice
        creation = p30.AclCreation(
            resource_type=choice(KINDS),
            resource_name=choice(NAMES),
            resource_pattern_type=choice(PATTERNS),
            principal=choice(PRINCIPALS),
            host=choice(HOSTS),
            operation=choice(OPERATIONS),
            permission_type=choice(PERMISSIONS),
        )
        if self.random.random() < 0.1:
            name, value = choice(
                (
                    ("resource_type", ResourceType.ANY),
                    ("resource_type", ResourceType.CLUSTER),
                    ("resource_pattern_type", PatternType.MATCH),
                    ("principal", "ann"),
                    ("operation", Operation.ANY),
                    ("permission_type", PermissionType.UNKNOWN),
                    ("resource_name", ""),
                )
            )
            setattr(creation, name, value)
            return creation, Item({ErrorCode.INVALID_REQUEST}, [], what=f"bad {creation}")
        entry = (
            creation.resource_type,
            creation.resource_name,
            creation.resource_pattern_type,
            creation.principal,
            creation.host,
            creation.operation,
            creation.permission_type,
        )

        def is_there(state: SecurityState) -> bool:
            return entry in state.entries.values()

        after = {ErrorCode.NONE: is_there}
        return creation, Item(OK, [("entry", entry)], after, f"created {entry}")

    async def _delete_entries(self) -> None:
        drawn = [self._filter() for _ in range(self.random.randint(1, 2))]
        filters = [wanted for wanted, _item in drawn]
        await self._ask(
            p31.DeleteAclsRequest(filters=filters),
            [item for _wanted, item in drawn],
            lambda response: [each.error_code for each in response.filter_results],
            filters,
        )

    def _filter(self) -> tuple[p31.DeleteAclsFilter, Item]:
        choice = self.random.choice
        wanted = p31.DeleteAclsFilter(
            resource_type_filter=choice((ResourceType.ANY, *KINDS)),
            resource_name_filter=choice((None, *NAMES)),
            pattern_type_filter=choice((PatternType.ANY, PatternType.MATCH, *PATTERNS)),
            principal_filter=choice((None, *PRINCIPALS)),
            host_filter=choice((None, *HOSTS)),
            operation=choice((Operation.ANY, Operation.ANY, *OPERATIONS)),
            permission_type=choice((PermissionType.ANY, PermissionType.DENY)),
        )
        if self.random.random() < 0.1:
            wanted.permission_type = 99
            return wanted, Item({ErrorCode.INVALID_REQUEST}, [], what=f"bad {wanted}")

        def none_is_there(state: SecurityState) -> bool:
            return not any(does_match(wanted, entry) for entry in state.entries.values())

        return wanted, Item(OK, [], {ErrorCode.NONE: none_is_there}, f"deleted {wanted}")

    # -- SCRAM -----------------------------------------------------------------------------------

    async def _alter_users(self) -> None:
        request = p51.AlterUserScramCredentialsRequest()
        items: list[Item] = []
        for user in self.random.sample(USERS, self.random.randint(1, 2)):
            mechanism = self.random.choice(MECHANISMS)
            if self.random.random() < 0.4:
                request.deletions.append(
                    p51.ScramCredentialDeletion(name=user, mechanism=mechanism)
                )
                items.append(_deletion(user, mechanism))
            else:
                upsertion, item = self._upsertion(user, mechanism)
                request.upsertions.append(upsertion)
                items.append(item)
        # The answers come in the order of users: deletions first.
        items.sort(key=lambda item: not item.what.startswith("no credential"))
        await self._ask(
            request, items, lambda response: [each.error_code for each in response.results]
        )

    def _upsertion(self, user: str, mechanism: int) -> tuple[p51.ScramCredentialUpsertion, Item]:
        salt = self.random.randbytes(16)
        upsertion = p51.ScramCredentialUpsertion(
            name=user,
            mechanism=mechanism,
            iterations=4096,
            salt=salt,
            salted_password=self.random.randbytes(32 * mechanism),
        )
        if self.random.random() < 0.15:
            refusal = ErrorCode.UNACCEPTABLE_CREDENTIAL
            if self.random.random() < 0.5:
                upsertion.iterations = self.random.choice((0, 4095, 16_385))
            else:
                upsertion.mechanism, refusal = 3, ErrorCode.UNSUPPORTED_SASL_MECHANISM
            return upsertion, Item({refusal}, [], what=f"bad credential of {user}")

        def is_there(state: SecurityState) -> bool:
            return state.credentials.get((user, mechanism), (b"",))[0] == salt

        change = ("credential", user, mechanism, salt)
        return upsertion, Item(OK, [change], {ErrorCode.NONE: is_there}, f"credential of {user}")

    # -- quotas ----------------------------------------------------------------------------------

    async def _alter_quotas(self) -> None:
        entities = self.random.sample((*CLIENT_ENTITIES, *IP_ENTITIES), self.random.randint(1, 3))
        drawn = [self._quota(entity) for entity in entities]
        validate_only = self.random.random() < 0.1
        items = [item for _entry, item in drawn]
        if validate_only:
            for item in items:
                item.change, item.afterwards = [], {}
        await self._ask(
            p49.AlterClientQuotasRequest(
                entries=[entry for entry, _item in drawn], validate_only=validate_only
            ),
            items,
            lambda response: [each.error_code for each in response.entries],
        )

    def _quota(self, entity: Entity) -> tuple[p49.EntryData, Item]:
        parts = [EntityData(entity_type=kind, entity_name=name) for kind, name in _sorted(entity)]
        entry = p49.EntryData(entity=parts)
        wanted: dict[str, float | None] = {}
        for key in self._quota_keys(entity):
            value = None
            if self.random.random() < 0.6:
                self._number += 1
                value = float(1_000_000 + self._number)
            wanted[key] = value
            entry.ops.append(p49.OpData(key=key, value=value or 0.0, remove=value is None))
        if self.random.random() < 0.15:
            bad = self.random.choice(
                (
                    p49.OpData(key=entry.ops[0].key, value=1.0),
                    p49.OpData(key="bytes_per_day", value=1.0),
                    p49.OpData(key="connection_creation_rate", value=0.0),
                )
            )
            entry.ops.append(bad)
            return entry, Item({ErrorCode.INVALID_REQUEST}, [], what=f"bad {entry}")

        def is_so(state: SecurityState) -> bool:
            return all(state.quotas.get((entity, key)) == wanted[key] for key in wanted)

        changes: list[Hashable] = [("quota", entity, key, wanted[key]) for key in wanted]
        return entry, Item(OK, changes, {ErrorCode.NONE: is_so}, f"quotas {entry}")

    def _quota_keys(self, entity: Entity) -> list[str]:
        if entity in IP_ENTITIES:
            return [CONNECTIONS]
        keys = (*CLIENT_QUOTAS, MUTATIONS) if ("user", "ann") in entity else CLIENT_QUOTAS
        return self.random.sample(keys, self.random.randint(1, 2))


def _deletion(user: str, mechanism: int) -> Item:
    def is_gone(state: SecurityState) -> bool:
        return (user, mechanism) not in state.credentials

    return Item(
        GONE_ALREADY,
        [("no credential", user, mechanism)],
        dict.fromkeys(GONE_ALREADY, is_gone),
        f"no credential of {user}",
    )


def _sorted(entity: Entity) -> list[tuple[str, str | None]]:
    return sorted(entity, key=lambda part: part[0])
