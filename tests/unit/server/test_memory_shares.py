"""The account of the memory of requests: limits hold, what is charged comes back, none starves."""

from __future__ import annotations

import random
import struct
from collections import deque

import pytest

from moldau.protocol.framing import CHUNK_BYTES, SCRATCH_BYTES, FrameReader, ReceiveMemory, Use
from moldau.server.memory_shares import (
    MIN_BUDGET_BYTES,
    SMALL_READS_PART,
    TRIES,
    WEIGHTS,
    Budget,
    MemoryShares,
    PeerKind,
    Share,
)
from tests.kit.dice import drawn_seed

MIB = 1024 * 1024
LARGEST = 4 * MIB
LIMIT = 64 * MIB


def shares_of(*kinds: PeerKind, limit: int = LIMIT, fair: int = 25) -> MemoryShares:
    shares = MemoryShares()
    for kind in kinds or (PeerKind.CLIENTS,):
        shares.budget(kind)
    shares.set_limits(limit, fair, LARGEST)
    return shares


class Owner:
    """Goes on when its account allows what it wants."""

    listener_name = "CLIENT"
    is_inside_large_frame = False

    def __init__(
        self,
        shares: MemoryShares,
        user: str,
        host: str,
        kind: PeerKind = PeerKind.CLIENTS,
    ) -> None:
        self.share = Share(shares, self, kind, user, host)
        self.wanted = 0
        self.tries = 0

    def take(self, size_bytes: int, use: Use = Use.READ) -> bool:
        if not self.share.allows(size_bytes, use):
            return False
        self.share.charge(size_bytes)
        return True

    def wait(self, shares: MemoryShares, size_bytes: int) -> None:
        assert not self.share.allows(size_bytes, Use.READ)
        self.wanted = size_bytes
        shares.wait(self.share)

    def memory_available(self) -> bool:
        self.tries += 1
        return self.take(self.wanted)

    def close(self, reason: str) -> None:
        raise AssertionError(reason)


def fill(owner: Owner, use: Use = Use.READ) -> int:
    while owner.take(CHUNK_BYTES, use):
        pass
    return owner.share.held_bytes


# -- what each may have -------------------------------------------------------------------------


def test_the_limit_is_divided_among_the_kinds_that_have_a_listener() -> None:
    assert sum(WEIGHTS.values()) == 100
    every = shares_of(*PeerKind)
    assert {budget.kind: budget.limit_bytes * 100 // LIMIT for budget in every} == {
        PeerKind.CLIENTS: 70 - 1,  # rounded down
        PeerKind.NODES: 20 - 1,
        PeerKind.CLIENT_LOGINS: 4,
        PeerKind.NODE_LOGINS: 4,
    }
    [alone] = shares_of()
    assert alone.limit_bytes == LIMIT
    with_logins = MemoryShares()
    with_logins.set_limits(LIMIT, 25, LARGEST)
    with_logins.add_peers(is_between_nodes=True, has_logins=True)
    assert [budget.kind for budget in with_logins] == [PeerKind.NODES, PeerKind.NODE_LOGINS]
    assert sum(budget.limit_bytes for budget in with_logins) <= LIMIT


def test_however_little_a_node_may_take_there_is_room_for_the_largest_frame() -> None:
    shares = shares_of(PeerKind.CLIENTS, PeerKind.NODES, limit=1)
    clients, nodes = shares
    assert shares.limit_bytes >= 2 * LARGEST
    assert clients.principal_cap_bytes >= LARGEST, "of the weights 70 and 20"
    assert nodes.limit_bytes >= MIN_BUDGET_BYTES


@pytest.mark.parametrize("fair", [1, 25, 60])
def test_one_principal_alone_leaves_a_share_for_others(fair: int) -> None:
    shares = shares_of(fair=fair)
    [budget] = shares
    greedy = [Owner(shares, "User:mallory", f"10.0.0.{number}") for number in range(3)]
    for each in greedy:
        fill(each)
    left = budget.limit_bytes - budget.held_bytes
    cap = max(100 - fair, fair)
    assert greedy[0].share.principal.held_bytes == pytest.approx(
        LIMIT * cap // 100, abs=CHUNK_BYTES
    )
    assert greedy[0].share.barred is greedy[0].share.principal
    good = Owner(shares, "User:alice", "10.0.0.1")
    assert good.take(min(left - CHUNK_BYTES, budget.share_bytes)) == (left > CHUNK_BYTES)


def test_one_address_alone_leaves_half_a_share_for_others() -> None:
    shares = shares_of()
    [budget] = shares
    for number in range(3):
        fill(Owner(shares, f"User:mallory-{number}", "10.0.0.1"))
    assert budget.held_bytes <= LIMIT - budget.share_bytes // 2
    assert Owner(shares, "User:alice", "10.0.0.2").take(budget.share_bytes // 2)


def test_peers_without_a_name_share_their_address_alone() -> None:
    shares = shares_of()
    fill(Owner(shares, "", "10.0.0.1"))
    fill(Owner(shares, "", "10.0.0.1"))
    other = Owner(shares, "", "10.0.0.2")
    assert other.take(CHUNK_BYTES)


def test_a_share_binds_only_while_others_wait() -> None:
    shares = shares_of()
    [budget] = shares
    greedy, second, third = (
        Owner(shares, f"User:{name}", f"10.0.0.{number}") for number, name in enumerate("abc")
    )
    assert greedy.take(LIMIT // 2)
    assert second.take(LIMIT // 2)
    third.wait(shares, CHUNK_BYTES)
    greedy.share.refund(LIMIT // SMALL_READS_PART + MIB)
    assert greedy.share.is_over_share
    assert not greedy.take(CHUNK_BYTES), "it is over its share, and another waits"
    assert greedy.take(CHUNK_BYTES, Use.GROWTH), "what has begun may end"
    assert shares.serve_line(budget)
    assert third.share.held_bytes == CHUNK_BYTES
    assert shares.waiting_count == 0
    assert greedy.take(CHUNK_BYTES)


def test_large_frames_leave_room_for_small_ones() -> None:
    shares = shares_of()
    for number in range(4):
        fill(Owner(shares, f"User:{number}", f"10.0.0.{number}"), Use.LARGE)
    held = LIMIT - LIMIT // SMALL_READS_PART
    assert shares.held_bytes == pytest.approx(held, abs=CHUNK_BYTES)
    assert Owner(shares, "User:alice", "10.0.0.9").take(CHUNK_BYTES)


def test_what_one_kind_of_peer_holds_is_not_taken_from_another() -> None:
    shares = shares_of(*PeerKind)
    for kind in PeerKind:
        for number in range(5):
            fill(Owner(shares, f"User:{number}", f"10.0.{number}.1", kind))
    for budget in shares:
        assert budget.limit_bytes - CHUNK_BYTES < budget.held_bytes <= budget.limit_bytes
    assert shares.held_bytes <= LIMIT


def test_what_a_peer_holds_goes_with_it_when_it_has_authenticated() -> None:
    shares = shares_of(PeerKind.CLIENTS, PeerKind.CLIENT_LOGINS)
    clients, logins = shares
    peer = Owner(shares, "", "10.0.0.1", PeerKind.CLIENT_LOGINS)
    assert peer.take(1_000)
    assert (clients.held_bytes, logins.held_bytes) == (0, 1_000)
    peer.share.move(PeerKind.CLIENTS, "User:alice")
    assert (clients.held_bytes, logins.held_bytes) == (1_000, 0)
    assert logins.holders == {}
    peer.share.close()
    assert len(clients.holders) == 2, "a request of it is still in work"
    peer.share.refund(1_000)
    assert clients.holders == {}


# -- who waits ----------------------------------------------------------------------------------


def test_those_that_wait_take_turns_by_principal_and_address() -> None:
    shares = shares_of()
    [budget] = shares
    holders = [Owner(shares, f"User:h{number}", f"10.1.0.{number}") for number in range(8)]
    for each in holders:
        assert each.take(LIMIT // 8)
    greedy = [Owner(shares, "User:mallory", "10.0.0.1") for _ in range(50)]
    good = Owner(shares, "User:alice", "10.0.0.2")
    for each in (*greedy, good):
        each.wait(shares, CHUNK_BYTES)
    holders[0].share.refund(2 * CHUNK_BYTES)
    while shares.serve_line(budget):
        pass
    assert greedy[0].share.held_bytes == CHUNK_BYTES
    assert good.share.held_bytes == CHUNK_BYTES
    assert shares.waiting_count == 49


def test_a_release_looks_at_few_of_those_that_wait() -> None:
    shares = shares_of()
    [budget] = shares
    for number in range(8):
        assert Owner(shares, f"User:h{number}", f"10.1.0.{number}").take(LIMIT // 8)
    waiting = [Owner(shares, "User:a", f"10.0.{n // 250}.{n % 250}") for n in range(2_000)]
    for each in waiting:
        each.wait(shares, CHUNK_BYTES)
    assert not shares.serve_line(budget)
    assert sum(each.tries for each in waiting) == TRIES
    for _ in range(len(waiting) // TRIES):
        shares.serve_line(budget)
    assert all(each.tries for each in waiting), "each in its turn"


def test_one_that_leaves_is_taken_out_of_the_line_in_its_turn() -> None:
    shares = shares_of()
    [budget] = shares
    for number in range(4):
        assert Owner(shares, f"User:h{number}", f"10.1.0.{number}").take(LIMIT // 4)
    leaving, staying = (Owner(shares, "User:a", "10.0.0.1") for _ in range(2))
    leaving.wait(shares, CHUNK_BYTES)
    staying.wait(shares, CHUNK_BYTES)
    leaving.share.close()
    assert shares.waiting_count == 1
    shares.serve_line(budget)
    assert (leaving.tries, staying.tries) == (0, 1)
    staying.share.close()
    shares.serve_line(budget)
    assert (list(budget.line), budget.sources, shares.waiting_count) == ([], {}, 0)


# -- whatever happens ---------------------------------------------------------------------------


SLOW_STEPS = 20


class Peer:
    """A peer of the simulation: it sends frames, which are held for a while."""

    listener_name = "CLIENT"

    def __init__(self, world: World, user: str, host: str, kind: PeerKind, *, good: bool) -> None:
        self.world = world
        self.good = good
        self.share = Share(world.shares, self, kind, user, host)
        self.reader = FrameReader(world.memory, account=self.share, max_cut_count=8)
        self.reader.is_frugal = kind in (PeerKind.CLIENT_LOGINS, PeerKind.NODE_LOGINS)
        self.unsent = 0
        self.head = b""
        self.in_work: deque[tuple[int, memoryview]] = deque()
        self.waited_steps = 0
        self.slow_steps = 0
        self.frame_count = 0
        self.is_closed = False

    @property
    def is_inside_large_frame(self) -> bool:
        return self.reader.holds_large_frame

    def begin(self) -> None:
        dice = self.world.dice
        largest = 20_000 if self.good else dice.choice([100, 60_000, MIB, LARGEST])
        if self.reader.is_frugal:
            largest = min(largest, 100_000)
        size = dice.randrange(1, largest + 1)
        self.head, self.unsent = struct.pack(">i", size), size

    def step(self) -> None:
        dice, now = self.world.dice, self.world.now
        while self.in_work and self.in_work[0][0] <= now:
            self.reader.release(self.in_work.popleft()[1])
            self.world.shares.serve_line(self.share.budget)
        if self.is_closed:
            return
        if self.share.is_waiting:
            self.waited_steps += 1
            return
        self.waited_steps = 0
        self.slow_steps += self.reader.is_inside_frame
        if len(self.in_work) > 4:
            return
        if self.reader.has_uncut:
            self.got(self.reader.cut_more())
        elif not self.reader.make_ready():
            self.world.shares.wait(self.share)
        else:
            if not self.unsent and not self.head:
                self.begin()
            most = 50_000 if self.good else dice.choice([1, 5_000, MIB])
            buffer = self.reader.get_buffer(dice.choice([-1, 100]))
            data = (self.head + bytes(min(self.unsent, most)))[: len(buffer)]
            buffer[: len(data)] = data
            self.unsent -= max(len(data) - len(self.head), 0)
            self.head = self.head[len(data) :]
            self.got(self.reader.buffer_updated(len(data)))

    def got(self, frames: list[memoryview]) -> None:
        self.frame_count += len(frames)
        self.slow_steps *= not frames
        lasts = 1 if self.good else self.world.dice.choice([0, 3, 30])
        self.in_work += [(self.world.now + lasts, frame) for frame in frames]

    def memory_available(self) -> bool:
        frames = self.reader.resume()
        self.got(frames)
        return bool(frames) or not self.reader.is_blocked

    def close(self, reason: str) -> None:
        self.is_closed = True
        self.reader.close()
        self.share.close()


class World:
    """Greedy and good peers of all kinds on one account."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.now = 0
        self.memory = ReceiveMemory(poison=True)
        self.shares = shares_of(*PeerKind, limit=dice.choice([1, LIMIT // 2, LIMIT]))
        self.peers = [self.peer(good=False) for _ in range(60)]
        self.good = [self.peer(good=True) for _ in range(6)]

    def peer(self, *, good: bool) -> Peer:
        dice = self.dice
        kind = dice.choice(list(PeerKind))
        user, host = (
            (f"User:good-{dice.random()}", f"10.1.0.{dice.randrange(250)}")
            if good
            else (dice.choice(["User:mallory", "User:eve", ""]), f"10.0.0.{dice.randrange(2)}")
        )
        return Peer(self, user, host, kind, good=good)

    def step(self) -> None:
        self.now += 1
        everyone = [*self.peers, *self.good]
        self.dice.shuffle(everyone)
        for each in everyone:
            each.step()
            self.check_counts()
        if self.now % 20 == 0:
            for budget in self.shares:
                self.sweep(budget)
        for each in self.peers:
            if not each.is_closed and self.dice.random() < 0.005:
                each.close("it goes")
        gone = [each for each in self.peers if each.is_closed and not each.in_work]
        for each in gone:
            self.peers.remove(each)
            self.peers.append(self.peer(good=False))

    def sweep(self, budget: Budget) -> None:
        if not budget.waiting_count:
            return
        self.shares.serve_line(budget, len(budget.line))
        wanted = budget.wanted_bytes()
        for each in sorted(self.peers, key=lambda each: -each.slow_steps):
            is_slow = each.slow_steps > SLOW_STEPS and not each.is_closed
            if wanted > 0 and is_slow and each.share.budget is budget:
                wanted -= each.share.held_bytes
                each.close("too slow")
        if not budget.moved:
            stuck = self.shares.free_a_frame(budget)
            if stuck is not None:
                stuck.owner.close("others wait")
        budget.moved = False

    def check_counts(self) -> None:
        shares = self.shares
        slack = (len(self.peers) + len(self.good)) * SCRATCH_BYTES
        assert shares.held_bytes == self.memory.reserved_bytes
        # Of nodes with less than four budgets' least, the budgets' least counts.
        assert shares.held_bytes <= shares.limit_bytes + slack + 4 * MIN_BUDGET_BYTES * (
            shares.limit_bytes < LIMIT // 2
        )
        for budget in shares:
            if shares.freed is None or shares.freed.budget is not budget:
                assert budget.held_bytes <= budget.limit_bytes + slack or self.was_freed(budget)

    def was_freed(self, budget: Budget) -> bool:
        """Whether a frame that went beyond the budget may still be in work."""
        return budget.held_bytes <= budget.limit_bytes + 2 * LARGEST


def test_limits_hold_and_good_peers_go_on_whatever_the_greedy_ones_do() -> None:
    seed = drawn_seed()
    world = World(random.Random(seed))
    longest = 0
    before = [0] * len(world.good)
    for round_number in range(12):
        for _ in range(100):
            world.step()
            longest = max(longest, *(each.waited_steps for each in world.good))
        counts = [each.frame_count for each in world.good]
        assert all(now > then for now, then in zip(counts, before, strict=True)), round_number
        before = counts
    # A sweep is every 20 steps, and greedy requests are in work for 30.
    assert longest <= 100
    for each in (*world.peers, *world.good):
        if not each.is_closed:
            each.close("the end")
        while each.in_work:
            each.reader.release(each.in_work.popleft()[1])
    for budget in world.shares:
        assert (budget.held_bytes, budget.waiting_count, budget.holders) == (0, 0, {})
    assert world.memory.reserved_bytes == 0
