"""Who holds how much of the memory of requests and of unread answers, and who waits for it.

Owns: a budget for each kind of peer (out of `queued.max.request.bytes`); in each budget what every
principal and every address holds, and the line of those that wait. Must not: know sockets, frames
or time. Invariants: what `allows` lets through takes no budget over its limit and the node not over
its own, but for the one frame that is let through when nothing moves (`free_a_frame`), which takes
only what others leave; what has been charged and given back is zero; a release looks at a few of
those that wait, however many there are.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator
from dataclasses import InitVar, dataclass, field
from enum import Enum
from typing import Final, Protocol

from moldau.protocol.framing import (
    CHUNK_BYTES,
    FIRST_LARGE_BUFFER_BYTES,
    Account,
    Use,
    rounded_bytes,
)

DEFAULT_MEMORY_LIMIT_BYTES: Final = 1024 * 1024 * 1024
"""What all budgets hold together (`queued.max.request.bytes`)."""

DEFAULT_FAIR_SHARE: Final = 25
"""`moldau.fair.share`, in per cent of a budget."""

MIN_BUDGET_BYTES: Final = 8 * CHUNK_BYTES
"""A budget has that much, however little the node may take."""

SMALL_READS_PART: Final = 8
"""One part in so many of a budget is for small frames: large ones never fill it."""

NEWCOMERS_PART: Final = 16
"""One part in so many of a budget is for peers that hold next to nothing."""

NEWCOMER_BYTES: Final = 2 * CHUNK_BYTES
"""What such a peer holds at most: the first requests of two connections."""

TRIES: Final = 16
"""How many of those that wait are looked at for a release."""


class PeerKind(Enum):
    """Peers with their own budget; the value is what documents and the log call them."""

    CLIENTS = "clients"
    NODES = "nodes"
    CLIENT_LOGINS = "clients that have not authenticated"
    NODE_LOGINS = "nodes that have not authenticated"


WEIGHTS: Final = {
    PeerKind.CLIENTS: 70,
    PeerKind.NODES: 20,
    PeerKind.CLIENT_LOGINS: 5,
    PeerKind.NODE_LOGINS: 5,
}
"""The parts of the node's limit; those of kinds that no listener has go to the others."""


class Waiter(Protocol):
    """The connection that an account belongs to."""

    listener_name: str

    @property
    def is_inside_large_frame(self) -> bool:
        """Whether the peer owes us the rest of a large frame that has a buffer."""

    def memory_available(self) -> bool:
        """Try again; whether it went on."""

    def end_if_peer_is_lost(self) -> None:
        """End the connection if its peer has gone: nothing else shows it while nothing is read."""

    def close(self, reason: str) -> None:
        """End the connection."""


class Holder:
    """A principal or an address in one budget.

    Attributes:
        held_bytes: what its connections are charged with.
        unread_bytes: answers in memory that it has not read.
        waiting_count: its connections that wait.
        moved: as of a budget; True until it is watched for the first time.
        credit_ms: how long its requests may be worked on at once, as of `credited_ms`.
    """

    __slots__ = (
        "credit_ms",
        "credited_ms",
        "held_bytes",
        "moved",
        "share_count",
        "unread_bytes",
        "waiting_count",
    )

    def __init__(self) -> None:
        self.held_bytes = 0
        self.unread_bytes = 0
        self.waiting_count = 0
        self.moved = True
        self.share_count = 0
        self.credit_ms = 0.0
        self.credited_ms = float("-inf")


@dataclass(slots=True, eq=False, repr=False)
class Budget:
    """What the peers of one kind may hold together.

    Attributes:
        limit_bytes: all of it.
        small_reads_bytes: the part of it, and of the caps, that large frames leave to small ones.
        newcomers_bytes: the part of it that is left to those who hold next to nothing.
        principal_cap_bytes: what one principal may have while nothing else waits: the rest is for
            others, so that they find room at once.
        address_cap_bytes: the same of one address: more, as others may come from there.
        share_bytes: what one of them may have while others wait.
        unread_bytes: answers in memory that have not been read. They cannot be refused, and are no
            part of `held_bytes`: they keep none but their own readers waiting.
        is_flooded: whether these are more than half of the limit. Then those with more than a share
            of them are not read from.
        moved: whether a buffer other than a chunk was given back, or a connection that waited went
            on, since `watch`.
    """

    kind: PeerKind
    held_bytes: int = 0
    unread_bytes: int = 0
    is_flooded: bool = False
    waiting_count: int = 0
    moved: bool = True
    holders: dict[tuple[bool, str], Holder] = field(default_factory=dict)
    line: OrderedDict[tuple[str, str], OrderedDict[Share, None]] = field(
        default_factory=OrderedDict
    )
    limit_bytes: int = 0
    share_bytes: int = 0
    small_reads_bytes: int = 0
    newcomers_bytes: int = 0
    principal_cap_bytes: int = 0
    address_cap_bytes: int = 0

    def set_limits(self, limit_bytes: int, fair_share: int) -> None:
        """Use other limits from now on; `fair_share` is in per cent."""
        self.limit_bytes = max(limit_bytes, MIN_BUDGET_BYTES)
        share = self.limit_bytes * fair_share // 100
        self.share_bytes = max(share, 2 * CHUNK_BYTES)
        self.principal_cap_bytes = max(self.limit_bytes - share, share)
        self.address_cap_bytes = max(self.limit_bytes - share // 2, share)
        self.small_reads_bytes = self.limit_bytes // SMALL_READS_PART
        self.newcomers_bytes = self.limit_bytes // NEWCOMERS_PART

    def needed(self, offered: Iterable[Share]) -> list[Share]:
        """Those of the accounts, taken in this order, whose memory makes room for what waits, and
        for answers where too many are unread. One that waits for the share of a holder needs room
        in that alone.
        """
        wanted_bytes: defaultdict[Holder | None, int] = defaultdict(int)
        wanted_bytes[None] = max(self.unread_bytes - self.limit_bytes // 2, 0)
        for share in self.waiting():
            wanted_bytes[share.barred] += share.wanted_bytes
        needed = []
        for share in offered:
            short = [
                holder
                for holder in (None, share.principal, share.address)
                if wanted_bytes[holder] > 0
            ]
            if short:
                needed.append(share)
            for holder in short:
                wanted_bytes[holder] -= share.held_bytes + share.unread_bytes
        return needed

    def waiting(self) -> Iterator[Share]:
        """All that wait."""
        for shares in self.line.values():
            yield from shares

    def watch(self) -> None:
        """Note from now on whether what is waited for moves."""
        self.moved = False
        for share in self.waiting():
            if share.barred is not None:
                share.barred.moved = False

    def stuck(self) -> list[list[Share]]:
        """Those that wait, and themselves hold what they wait for: of the whole budget, or of one
        principal or address that may have no more. Nothing of it has moved. In each such group
        those with a large frame come first, as only its end gives much back, and of these the one
        that holds least.
        """
        groups: defaultdict[Holder | None, list[Share]] = defaultdict(list)
        for share in self.waiting():
            if share.held_bytes:
                groups[share.barred].append(share)
        return [
            sorted(group, key=Share.order_when_stuck)
            for holder, group in groups.items()
            if not (self if holder is None else holder).moved
        ]

    def holder(self, name: str, *, is_principal: bool) -> Holder:
        """The one of that name, shared by all of its connections."""
        holder = self.holders.get((is_principal, name))
        if holder is None:
            holder = self.holders[is_principal, name] = Holder()
        return holder


@dataclass(slots=True, eq=False, repr=False)
class Share(Account):
    """The account of one connection, charged to its principal, its address and their budget.

    Attributes:
        user: the principal; empty for a peer that has no name of its own.
        party: who answers for what the connection does: where there is a name, the address may be
            others'.
        held_bytes: what this connection holds.
        unread_bytes: answers in memory that its peer has not read.
        barred: the holder whose share kept the last request from being allowed; None if it was the
            budget.
    """

    _shares: MemoryShares
    owner: Waiter
    kind: InitVar[PeerKind]
    user: str
    host: str
    held_bytes: int = 0
    unread_bytes: int = 0
    wanted_bytes: int = 0
    is_waiting: bool = False
    is_closed: bool = False
    barred: Holder | None = None
    budget: Budget = field(init=False)
    principal: Holder = field(init=False)
    address: Holder = field(init=False)
    party: Holder = field(init=False)

    def __post_init__(self, kind: PeerKind) -> None:
        self._enter(kind, self.user)

    def _enter(self, kind: PeerKind, user: str) -> None:
        self.user = user
        budget = self.budget = self._shares.budget(kind)
        # Those without a name have nothing in common.
        self.principal = budget.holder(user, is_principal=True) if user else Holder()
        self.address = budget.holder(self.host, is_principal=False)
        self.party = self.principal if user else self.address
        self.principal.share_count += 1
        self.address.share_count += 1

    def move(self, kind: PeerKind, user: str) -> None:
        """The peer has said who it is: what it holds is charged to that principal from now on."""
        is_waiting, held, unread = self.is_waiting, self.held_bytes, self.unread_bytes
        if is_waiting:
            self._shares.leave_line(self)
        self.refund(held)
        self.count_unread(0)
        self._leave()
        self._enter(kind, user)
        self.charge(held)
        self.count_unread(unread)
        if is_waiting:
            self._shares.wait(self)

    @property
    def is_calm(self) -> bool:
        budget = self.budget
        return budget.held_bytes + FIRST_LARGE_BUFFER_BYTES <= budget.share_bytes

    @property
    def needs_to_be_free(self) -> bool:
        """Whether the frame that may go beyond its budget is still under way."""
        return self.is_waiting or self.owner.is_inside_large_frame

    def order_when_stuck(self) -> tuple[bool, int, int]:
        """For sorting; see `Budget.stuck`."""
        return not self.owner.is_inside_large_frame, self.principal.held_bytes, self.held_bytes

    @property
    def is_over_share(self) -> bool:
        """Whether its principal or address holds more than it may while others wait."""
        share_bytes = self.budget.share_bytes
        return (
            self.principal.held_bytes > share_bytes
            or self.address.held_bytes > share_bytes
            or self.party.unread_bytes > share_bytes
        )

    @property
    def unread_by_reader(self) -> int:
        """Bytes of answers that the principal has not read, or the address where it has no name."""
        return self.party.unread_bytes

    def allows(self, size_bytes: int, use: Use) -> bool:
        budget = self.budget
        # While all together hold less than a share, none holds more.
        if budget.held_bytes + size_bytes <= budget.share_bytes and not budget.is_flooded:
            return True
        return self._allows(size_bytes, use)

    def _allows(self, size_bytes: int, use: Use) -> bool:
        shares, budget = self._shares, self.budget
        self.wanted_bytes = size_bytes
        self.barred = None
        if size_bytes > shares.room_beside(budget):
            return False
        if shares.freed is self:
            return True
        is_read = use is Use.READ
        is_newcomer = is_read and self.party.held_bytes + size_bytes <= NEWCOMER_BYTES
        # Large frames leave room for small ones, those of the same principal and address, too.
        kept = 0 if is_read else budget.small_reads_bytes
        kept_of_all = budget.newcomers_bytes if is_read and not is_newcomer else kept
        if budget.held_bytes + size_bytes > budget.limit_bytes - kept_of_all:
            return False
        if budget.is_flooded and self.party.unread_bytes > budget.share_bytes:
            self.barred = self.party
            return False
        if is_newcomer:
            return True  # whatever others at its address hold
        for holder, cap_bytes in (
            (self.principal, budget.principal_cap_bytes),
            (self.address, budget.address_cap_bytes),
        ):
            others_wait = budget.waiting_count > holder.waiting_count
            # A frame that has begun may end: only its end gives back what it holds.
            is_bound = others_wait and use is not Use.GROWTH
            most = budget.share_bytes if is_bound else cap_bytes - kept
            if holder.held_bytes + size_bytes > most:
                self.barred = holder
                return False
        return True

    def charge(self, size_bytes: int) -> None:
        self.held_bytes += size_bytes
        self.principal.held_bytes += size_bytes
        self.address.held_bytes += size_bytes
        self.budget.held_bytes += size_bytes

    def refund(self, size_bytes: int) -> None:
        self.held_bytes -= size_bytes
        self.principal.held_bytes -= size_bytes
        self.address.held_bytes -= size_bytes
        self.budget.held_bytes -= size_bytes
        if size_bytes != CHUNK_BYTES:  # chunks come and go with all small frames
            self.note_move()
        if self.is_closed and not self.held_bytes:
            self._leave()

    def note_move(self) -> None:
        """Those that wait for the same as this one may soon go on."""
        self.principal.moved = self.address.moved = self.budget.moved = True

    def count_unread(self, unread_bytes: int) -> None:
        """So much of the answers is in memory, and has not been read."""
        more = unread_bytes - self.unread_bytes
        self.unread_bytes = unread_bytes
        self.party.unread_bytes += more
        budget = self.budget
        budget.unread_bytes += more
        budget.is_flooded = 2 * budget.unread_bytes > budget.limit_bytes

    def close(self) -> None:
        """The connection has ended; what is still in use is given back later."""
        if self.is_waiting:
            self._shares.leave_line(self)
        if self._shares.freed is self:
            self._shares.freed = None
        self.count_unread(0)
        self.is_closed = True
        del self.owner  # no cycle is left
        if not self.held_bytes:
            self._leave()

    def _leave(self) -> None:
        holders = self.budget.holders
        for is_principal, name, holder in (
            (True, self.user, self.principal),
            (False, self.host, self.address),
        ):
            holder.share_count -= 1
            if not holder.share_count:
                holders.pop((is_principal, name), None)


class MemoryShares:
    """The budgets of one server.

    Attributes:
        limit_bytes: of all budgets together.
        waiting_count: connections that wait, of all budgets.
        freed: the account whose frame may go beyond its budget, as nothing moves otherwise.
    """

    def __init__(self) -> None:
        self.limit_bytes = 0
        self.waiting_count = 0
        self.freed: Share | None = None
        self._stuck: deque[Share] = deque()
        self._fair_share = DEFAULT_FAIR_SHARE
        self._budgets: dict[PeerKind, Budget] = {}

    def __iter__(self) -> Iterator[Budget]:
        return iter(self._budgets.values())

    @property
    def held_bytes(self) -> int:
        return sum(budget.held_bytes for budget in self)

    def add_peers(self, *, is_between_nodes: bool, has_logins: bool) -> None:
        """Give the peers of a listener their parts of the limit."""
        self.budget(PeerKind.NODES if is_between_nodes else PeerKind.CLIENTS)
        if has_logins:
            self.budget(PeerKind.NODE_LOGINS if is_between_nodes else PeerKind.CLIENT_LOGINS)

    def budget(self, kind: PeerKind) -> Budget:
        """The budget of a kind; from its first use on it has its part of the limit."""
        budget = self._budgets.get(kind)
        if budget is None:
            budget = self._budgets[kind] = Budget(kind)
            self._divide()
        return budget

    def set_limits(self, limit_bytes: int, fair_share: int, largest_frame_bytes: int) -> None:
        """Use other limits from now on; what is held stays.

        Args:
            limit_bytes: `queued.max.request.bytes`; it counts as twice the largest frame at least.
            fair_share: `moldau.fair.share`, in per cent.
            largest_frame_bytes: `socket.request.max.bytes`.
        """
        largest = rounded_bytes(largest_frame_bytes) + 2 * CHUNK_BYTES
        self.limit_bytes = max(limit_bytes, 2 * largest)
        self._fair_share = fair_share
        self._divide()

    def _divide(self) -> None:
        total = sum(WEIGHTS[kind] for kind in self._budgets)
        for kind, budget in self._budgets.items():
            budget.set_limits(self.limit_bytes * WEIGHTS[kind] // total, self._fair_share)

    def room_beside(self, budget: Budget) -> int:
        """What is left for a frame that may go beyond its budget: the others keep a share each."""
        kept = sum(
            max(other.share_bytes - other.held_bytes, 0) for other in self if other is not budget
        )
        return self.limit_bytes - self.held_bytes - kept

    # -- the line --------------------------------------------------------------------------------

    def wait(self, share: Share, *, is_first: bool = False) -> None:
        """Have the account's owner try again when there may be memory.

        Args:
            is_first: it has tried in vain, and keeps its place among those of its principal and
                address.
        """
        shares = share.budget.line.setdefault((share.user, share.host), OrderedDict())
        shares[share] = None
        if is_first:
            shares.move_to_end(share, last=False)
        share.is_waiting = True
        self._count(share, 1)

    def leave_line(self, share: Share) -> None:
        """The account's owner does not wait any more."""
        self._take_out(share)
        share.note_move()

    def _take_out(self, share: Share) -> None:
        line, key = share.budget.line, (share.user, share.host)
        shares = line[key]
        del shares[share]
        if not shares:
            del line[key]
        share.is_waiting = False
        self._count(share, -1)

    def _count(self, share: Share, step: int) -> None:
        self.waiting_count += step
        share.budget.waiting_count += step
        share.principal.waiting_count += step
        share.address.waiting_count += step

    def serve_line(self, budget: Budget, most: int = TRIES) -> bool:
        """Let the first in line try, those of one principal and address after those of another;
        whether one of them went on, so that the next ones may, too.
        """
        went_on, line = False, budget.line
        for _ in range(min(most, len(line))):
            if not line:
                break
            key, shares = next(iter(line.items()))
            line.move_to_end(key)
            went_on = self._let_try(next(iter(shares))) or went_on
        return went_on

    def _let_try(self, share: Share) -> bool:
        """Have it try again; whether it goes on, and does not wait for more already."""
        self._take_out(share)
        if share.owner.memory_available():
            if not share.is_waiting:
                share.note_move()
            return not share.is_waiting
        if not share.is_closed:
            self.wait(share, is_first=True)
        return False

    def free_a_frame(self, stuck: list[Share]) -> Share | None:
        """Let a frame of a group that is stuck go beyond its budget: of the first. If there is no
        room for that either, returns the account that has to give up its frame: the last one.
        """
        if self.freed is None or not self.freed.is_waiting:
            self.freed = stuck[0]
            self._stuck = deque(stuck[1:])
        elif self.freed in stuck:
            return next((share for share in reversed(stuck) if share is not self.freed), None)
        return None

    def free_next(self) -> None:
        """If the frame that was let through has ended, let one of the next of its group through."""
        if self.freed is not None:
            if self.freed.needs_to_be_free:
                return
            self.freed = None
        while self._stuck:
            share = self._stuck.popleft()
            if share.is_waiting:
                self.freed = share
                self._let_try(share)
                return
