"""The account of memory under greedy and good peers: limits hold, what is charged comes back, and
a peer that takes little is never kept waiting for long.
"""

from __future__ import annotations

import random
import struct
from collections import deque

from moldau.protocol.framing import SCRATCH_BYTES, FrameReader, ReceiveMemory
from moldau.server.memory_shares import MIN_BUDGET_BYTES, Budget, MemoryShares, PeerKind, Share
from tests.kit.dice import drawn_seed

MIB = 1024 * 1024
LARGEST = 4 * MIB
LIMIT = 64 * MIB

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
            self.world.shares.free_next()
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
        self.shares = MemoryShares()
        for kind in PeerKind:
            self.shares.budget(kind)
        self.shares.set_limits(dice.choice([1, LIMIT // 2, LIMIT]), 25, LARGEST)
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
        slow = [
            each.share
            for each in sorted(self.peers, key=lambda each: -each.slow_steps)
            if each.slow_steps > SLOW_STEPS and not each.is_closed and each.share.budget is budget
        ]
        for share in budget.needed(slow):
            share.owner.close("too slow")
        for stuck in budget.stuck():
            given_up = self.shares.free_a_frame(stuck)
            if given_up is not None:
                given_up.owner.close("others wait")
        budget.watch()

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
