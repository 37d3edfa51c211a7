"""Budgets, holders and the line of those that wait for memory, by the numbers."""

from __future__ import annotations

import pytest

from moldau.protocol.framing import CHUNK_BYTES, FIRST_LARGE_BUFFER_BYTES, Use, rounded_bytes
from moldau.server.memory_shares import (
    MIN_BUDGET_BYTES,
    NEWCOMER_BYTES,
    NEWCOMERS_PART,
    SMALL_READS_PART,
    TRIES,
    WEIGHTS,
    Budget,
    MemoryShares,
    PeerKind,
    Share,
)

MIB = 1024 * 1024
LIMIT = 1_000 * MIB
LARGEST = 10 * MIB
CLIENTS, NODES = PeerKind.CLIENTS, PeerKind.NODES


class Peer:
    """A connection: what it hears, and whether it goes on when it is let try."""

    listener_name = "L"

    def __init__(self, *, goes_on: bool = True) -> None:
        self.goes_on = goes_on
        self.is_inside_large_frame = False
        self.tries = 0
        self.closed: list[str] = []

    def memory_available(self) -> bool:
        self.tries += 1
        return self.goes_on

    def close(self, reason: str) -> None:
        self.closed.append(reason)


class Rig:
    """The budgets of a server whose listeners have clients alone, unless more are named."""

    def __init__(self, *kinds: PeerKind, fair_share: int = 25, limit: int = LIMIT) -> None:
        self.shares = MemoryShares()
        for kind in kinds or (CLIENTS,):
            self.shares.budget(kind)
        self.shares.set_limits(limit, fair_share, LARGEST)
        self.budget = self.shares.budget((kinds or (CLIENTS,))[0])
        self.peers: dict[Share, Peer] = {}

    def share(
        self, user: str = "a", host: str = "h", kind: PeerKind = CLIENTS, *, goes_on: bool = True
    ) -> Share:
        peer = Peer(goes_on=goes_on)
        share = Share(self.shares, peer, kind, user, host)
        self.peers[share] = peer
        return share

    def served(self) -> list[Share]:
        """Those that have tried since the last call."""
        tried = [share for share, peer in self.peers.items() if peer.tries]
        for peer in self.peers.values():
            peer.tries = 0
        return tried


# -- the sizes ------------------------------------------------------------------------------------


def test_the_limit_is_divided_by_weight_among_the_kinds_that_there_are() -> None:
    rig = Rig(*PeerKind)
    parts = {budget.kind: budget.limit_bytes for budget in rig.shares}
    assert parts == {kind: LIMIT * weight // 100 for kind, weight in WEIGHTS.items()}
    assert Rig(CLIENTS).budget.limit_bytes == LIMIT
    two = Rig(CLIENTS, NODES)
    assert two.budget.limit_bytes == LIMIT * 70 // 90
    two.shares.budget(PeerKind.NODE_LOGINS)
    assert two.budget.limit_bytes == LIMIT * 70 // 95
    assert two.shares.budget(CLIENTS) is two.budget


@pytest.mark.parametrize(
    ("is_between_nodes", "has_logins", "kinds"),
    [
        (False, False, {CLIENTS}),
        (False, True, {CLIENTS, PeerKind.CLIENT_LOGINS}),
        (True, False, {NODES}),
        (True, True, {NODES, PeerKind.NODE_LOGINS}),
    ],
)
def test_a_listener_has_the_budgets_of_its_peers(
    is_between_nodes: bool, has_logins: bool, kinds: set[PeerKind]
) -> None:
    shares = MemoryShares()
    shares.set_limits(LIMIT, 25, LARGEST)
    shares.add_peers(is_between_nodes=is_between_nodes, has_logins=has_logins)
    assert {budget.kind for budget in shares} == kinds


def test_the_node_takes_two_of_the_largest_frames_at_least() -> None:
    largest = rounded_bytes(LARGEST) + 2 * CHUNK_BYTES
    assert Rig(limit=1).shares.limit_bytes == 2 * largest
    assert Rig(limit=2 * largest + 1).shares.limit_bytes == 2 * largest + 1


def sizes(limit: int, fair_share: int) -> tuple[int, int, int, int, int]:
    budget = Budget(CLIENTS)
    budget.set_limits(limit, fair_share)
    return (
        budget.limit_bytes,
        budget.share_bytes,
        budget.principal_cap_bytes,
        budget.address_cap_bytes,
        budget.limit_bytes - budget.small_reads_bytes,
    )


def test_what_one_may_have_follows_from_the_share() -> None:
    large = LIMIT - LIMIT // SMALL_READS_PART
    assert sizes(LIMIT, 25) == (LIMIT, 250 * MIB, 750 * MIB, 875 * MIB, large)
    assert sizes(LIMIT, 60) == (LIMIT, 600 * MIB, 600 * MIB, 700 * MIB, large)
    assert sizes(LIMIT, 100) == (LIMIT, LIMIT, LIMIT, LIMIT, large)
    least = MIN_BUDGET_BYTES
    assert sizes(1, 1)[:2] == (least, 2 * CHUNK_BYTES)


# -- holding --------------------------------------------------------------------------------------


def test_what_is_charged_counts_for_the_principal_the_address_and_the_budget() -> None:
    rig = Rig()
    first, same_user, same_host = rig.share(), rig.share("a", "other"), rig.share("b")
    nameless = [rig.share("", "x"), rig.share("", "x")]
    first.charge(10)
    same_user.charge(100)
    same_host.charge(1_000)
    nameless[0].charge(5)
    assert (first.held_bytes, first.principal.held_bytes, first.address.held_bytes) == (
        *(10, 110),
        1_010,
    )
    assert (rig.budget.held_bytes, rig.shares.held_bytes) == (1_115, 1_115)
    assert (nameless[1].principal.held_bytes, nameless[1].address.held_bytes) == (0, 5)
    first.refund(10)
    assert (first.held_bytes, first.principal.held_bytes, first.address.held_bytes) == (
        *(0, 100),
        1_000,
    )
    assert rig.budget.moved


def test_holders_go_with_the_last_that_they_hold_for() -> None:
    rig = Rig()
    first, second = rig.share(), rig.share()
    assert set(rig.budget.holders) == {(True, "a"), (False, "h")}
    first.close()
    assert set(rig.budget.holders) == {(True, "a"), (False, "h")}
    second.charge(10)
    second.close()
    assert set(rig.budget.holders) == {(True, "a"), (False, "h")}, "it still has what is in use"
    second.refund(4)
    assert set(rig.budget.holders) == {(True, "a"), (False, "h")}
    second.refund(6)
    assert rig.budget.holders == {}
    assert rig.budget.held_bytes == 0
    assert not hasattr(first, "owner")


def test_what_a_peer_holds_goes_with_it_to_its_name_and_kind() -> None:
    rig = Rig(CLIENTS, PeerKind.CLIENT_LOGINS)
    logins = rig.shares.budget(PeerKind.CLIENT_LOGINS)
    share = rig.share("", kind=PeerKind.CLIENT_LOGINS)
    share.charge(10)
    rig.shares.wait(share)
    share.move(CLIENTS, "a")
    assert (logins.held_bytes, logins.waiting_count, logins.holders) == (0, 0, {})
    assert (rig.budget.held_bytes, rig.budget.waiting_count) == (10, 1)
    assert (share.user, share.principal.held_bytes, share.held_bytes) == ("a", 10, 10)
    assert (share.is_waiting, list(rig.budget.waiting())) == (True, [share])
    calm = rig.share("", kind=PeerKind.CLIENT_LOGINS)
    calm.move(CLIENTS, "b")
    assert (calm.is_waiting, rig.budget.waiting_count) == (False, 1)


# -- what is allowed ------------------------------------------------------------------------------


def test_below_a_share_all_together_may_take_whatever_they_like() -> None:
    rig = Rig()
    share = rig.share()
    assert share.is_calm
    size = rig.budget.share_bytes
    assert share.allows(size, Use.LARGE)
    share.charge(size - FIRST_LARGE_BUFFER_BYTES)
    assert share.is_calm
    share.charge(1)
    assert not share.is_calm


def test_a_lone_principal_leaves_room_for_others_and_an_address_less() -> None:
    rig = Rig()
    share = rig.share()
    share.charge(rig.budget.principal_cap_bytes - rig.budget.small_reads_bytes - 10)
    assert share.allows(10, Use.LARGE)
    assert not share.allows(11, Use.LARGE)
    share.charge(rig.budget.small_reads_bytes)
    assert share.allows(10, Use.READ), "large frames leave room for small ones"
    assert not share.allows(11, Use.READ)
    assert share.barred is share.principal
    assert share.wanted_bytes == 11
    nameless = rig.share("", "x")
    rig.share("", "x").charge(rig.budget.address_cap_bytes - share.held_bytes - 10)
    share.refund(share.held_bytes)
    rig.share("", "x").charge(rig.budget.address_cap_bytes - rig.budget.held_bytes - 10)
    assert nameless.allows(10, Use.READ)
    assert not nameless.allows(11, Use.READ)
    assert nameless.barred is nameless.address


def test_large_frames_leave_room_for_small_ones() -> None:
    rig = Rig(fair_share=25)
    large_bytes = rig.budget.limit_bytes - rig.budget.small_reads_bytes
    for number in range(10):
        rig.share(str(number), str(number)).charge(large_bytes // 10)
    share = rig.share()
    left = large_bytes - rig.budget.held_bytes
    assert share.allows(left, Use.LARGE)
    assert not share.allows(left + 1, Use.LARGE)
    assert share.barred is None, "the budget is full"
    assert not share.allows(left + 1, Use.GROWTH)
    assert share.allows(left + 1, Use.READ)
    whole = rig.budget.limit_bytes - rig.budget.held_bytes - rig.budget.newcomers_bytes
    assert share.allows(whole, Use.READ)
    assert not share.allows(whole + 1, Use.READ)


def test_while_others_wait_one_has_a_share_unless_its_frame_has_begun() -> None:
    rig = Rig()
    greedy, other = rig.share("greedy", "g"), rig.share("other", "o")
    greedy.charge(rig.budget.share_bytes)
    assert greedy.allows(1, Use.LARGE)
    rig.shares.wait(greedy)
    assert greedy.allows(1, Use.LARGE), "those that wait are its own"
    rig.shares.wait(other)
    assert not greedy.allows(1, Use.LARGE)
    assert greedy.barred is greedy.principal
    assert greedy.allows(1, Use.GROWTH)
    assert other.allows(rig.budget.share_bytes, Use.LARGE)
    assert not greedy.is_over_share
    greedy.charge(1)
    assert greedy.is_over_share
    assert not other.is_over_share
    nameless = rig.share("", "g")
    assert nameless.is_over_share, "by its address"


def test_no_budget_takes_the_shares_of_the_others() -> None:
    rig = Rig(CLIENTS, NODES)
    nodes = rig.shares.budget(NODES)
    assert rig.shares.room_beside(rig.budget) == LIMIT - nodes.share_bytes
    node = rig.share("node", "n", NODES)
    node.charge(nodes.share_bytes - 10)
    assert rig.shares.room_beside(rig.budget) == LIMIT - nodes.share_bytes
    node.charge(30)
    assert rig.shares.room_beside(rig.budget) == LIMIT - nodes.share_bytes - 20
    share = rig.share()
    share.charge(5)
    room = rig.shares.room_beside(rig.budget)
    assert room == LIMIT - nodes.share_bytes - 25
    rig.shares.freed = share
    assert share.allows(room, Use.LARGE)
    assert not share.allows(room + 1, Use.LARGE)


def test_too_many_unread_answers_keep_their_own_reader_waiting() -> None:
    rig = Rig()
    limit, share_bytes = rig.budget.limit_bytes, rig.budget.share_bytes
    greedy, other, nameless = rig.share("greedy", "g"), rig.share("other", "g"), rig.share("", "g")
    greedy.count_unread(limit // 2)
    assert greedy.is_over_share
    assert not rig.budget.is_flooded
    assert greedy.allows(1, Use.READ)
    other.count_unread(1)
    assert rig.budget.is_flooded
    assert not greedy.allows(1, Use.READ)
    assert greedy.barred is greedy.principal
    assert other.allows(1, Use.READ), "a name answers for itself, and not for its address"
    assert nameless.allows(1, Use.READ)
    assert rig.budget.needed([nameless]) == [nameless]
    nameless.count_unread(share_bytes)
    assert rig.share("", "g").allows(1, Use.READ), "just a share"
    nameless.count_unread(share_bytes + 1)
    assert not rig.share("", "g").allows(1, Use.READ), "its address has too many"
    nameless.move(NODES, "node")
    assert rig.shares.budget(NODES).unread_bytes == share_bytes + 1
    greedy.close()
    assert (rig.budget.unread_bytes, rig.budget.is_flooded) == (1, False)
    other.count_unread(rig.budget.share_bytes)
    assert not other.is_over_share, "just a share"
    other.count_unread(rig.budget.share_bytes + 1)
    assert other.is_over_share


def test_a_newcomer_finds_room_however_much_the_others_may_have() -> None:
    rig = Rig()
    for number in range(4):
        greedy = rig.share(f"greedy {number}", f"g{number}")
        while greedy.allows(CHUNK_BYTES, Use.READ):
            greedy.charge(CHUNK_BYTES)
        rig.shares.wait(greedy)
    full = LIMIT - LIMIT // NEWCOMERS_PART
    assert full - CHUNK_BYTES < rig.budget.held_bytes <= full + 4 * NEWCOMER_BYTES
    newcomer = rig.share("new", "g0")  # behind the address of a greedy one
    assert newcomer.allows(NEWCOMER_BYTES, Use.READ)
    assert not newcomer.allows(NEWCOMER_BYTES + 1, Use.READ)
    assert not newcomer.allows(1, Use.LARGE)
    newcomer.charge(NEWCOMER_BYTES)
    assert not newcomer.allows(1, Use.READ)
    nameless = rig.share("", "new")
    assert nameless.allows(NEWCOMER_BYTES, Use.READ)
    assert not rig.share("", "g0").allows(1, Use.READ)


# -- the line -------------------------------------------------------------------------------------


def test_those_of_one_principal_and_address_come_after_those_of_another() -> None:
    rig = Rig()
    many = [rig.share("many") for _ in range(3)]
    one = rig.share("one")
    for share in (*many, one):
        rig.shares.wait(share)
    assert (rig.shares.waiting_count, rig.budget.waiting_count) == (4, 4)
    assert many[0].principal.waiting_count == 3
    assert rig.shares.serve_line(rig.budget, 2)
    assert rig.served() == [many[0], one]
    assert (rig.shares.waiting_count, many[0].principal.waiting_count) == (2, 2)
    assert rig.shares.serve_line(rig.budget)
    assert rig.served() == [many[1]]
    assert rig.shares.serve_line(rig.budget)
    assert rig.served() == [many[2]]
    assert not rig.shares.serve_line(rig.budget)
    assert (len(rig.budget.line), rig.shares.waiting_count) == (0, 0)


def test_what_waits_no_more_takes_no_place_in_the_line() -> None:
    rig = Rig()
    first = rig.share("one")
    rig.shares.wait(first)
    for number in range(3):
        for who in ("one", f"other {number}"):
            gone = rig.share(who)
            rig.shares.wait(gone)
            gone.close()
    assert list(rig.budget.waiting()) == [first]
    assert len(rig.budget.line) == 1


def test_one_that_tries_in_vain_keeps_its_place_among_its_own() -> None:
    rig = Rig()
    first, second = rig.share(goes_on=False), rig.share()
    other = rig.share("b")
    for share in (first, second, other):
        rig.shares.wait(share)
    rig.budget.moved = False
    assert not rig.shares.serve_line(rig.budget, 1)
    assert rig.served() == [first]
    assert not rig.budget.moved
    assert (first.is_waiting, rig.shares.waiting_count) == (True, 3)
    assert rig.shares.serve_line(rig.budget, 1)
    assert rig.served() == [other]
    assert rig.budget.moved
    rig.peers[first].goes_on = True
    rig.shares.serve_line(rig.budget, 1)
    assert rig.served() == [first]


def test_a_release_looks_at_a_few_of_those_that_wait() -> None:
    rig = Rig()
    for number in range(TRIES + 1):
        rig.shares.wait(rig.share(str(number), goes_on=False))
    rig.shares.serve_line(rig.budget)
    assert len(rig.served()) == TRIES


def test_one_that_waits_no_more_is_passed_over() -> None:
    rig = Rig()
    gone, left = rig.share(), rig.share()
    rig.shares.wait(gone)
    rig.shares.wait(left)
    rig.budget.moved = False
    gone.close()
    assert rig.budget.moved
    assert (rig.shares.waiting_count, list(rig.budget.waiting())) == (1, [left])
    rig.shares.serve_line(rig.budget)
    assert rig.served() == [left]
    left.wanted_bytes = 5
    assert rig.budget.needed([left]) == []


def test_what_those_that_wait_want() -> None:
    rig = Rig()
    for number, wanted in enumerate((3, 4)):
        share = rig.share(str(number))
        share.wanted_bytes = wanted
        rig.shares.wait(share)
    offered = [rig.share(f"slow {number}") for number in range(4)]
    assert rig.budget.needed(offered) == offered, "what holds nothing gives nothing"
    for share in offered:
        share.charge(2)
    offered[1].count_unread(1)
    assert rig.budget.needed(offered) == offered[:3]


def test_one_that_waits_for_its_own_share_needs_nothing_of_others() -> None:
    rig = Rig()
    greedy, neighbour, stranger = rig.share("greedy", "g"), rig.share("n", "g"), rig.share("s", "s")
    own = rig.share("greedy", "elsewhere")
    for share in (neighbour, stranger, own):
        share.charge(2)
    greedy.wanted_bytes, greedy.barred = 1, greedy.principal
    rig.shares.wait(greedy)
    assert rig.budget.needed([stranger, neighbour, own]) == [own]
    greedy.barred = greedy.address
    assert rig.budget.needed([stranger, own, neighbour]) == [neighbour]
    stranger.wanted_bytes = 1
    rig.shares.wait(stranger)
    assert rig.budget.needed([own, neighbour]) == [own, neighbour], "the budget itself is short"


class Closing(Peer):
    """Is closed by what it tries."""

    share: Share

    def memory_available(self) -> bool:
        self.share.close()
        return False


def test_one_that_is_closed_by_its_try_does_not_wait_again() -> None:
    rig = Rig()
    peer = Closing()
    peer.share = Share(rig.shares, peer, CLIENTS, "a", "h")
    rig.shares.wait(peer.share)
    assert not rig.shares.serve_line(rig.budget)
    assert (rig.shares.waiting_count, list(rig.budget.waiting())) == (0, [])


# -- where nothing moves --------------------------------------------------------------------------


def test_the_frame_of_who_holds_least_is_let_through_first() -> None:
    rig = Rig()
    shares = []
    for user, held in (("a", 50), ("b", 10), ("b", 5), ("c", 0)):
        share = rig.share(user, user, goes_on=False)
        share.charge(held)
        rig.shares.wait(share)
        shares.append(share)
    most, more, least, _ = shares
    rig.budget.watch()

    def free_a_frame() -> Share | None:
        [stuck] = rig.budget.stuck()
        return rig.shares.free_a_frame(stuck)

    assert free_a_frame() is None
    assert rig.shares.freed is least
    # Without room for that either, who holds most gives up.
    assert free_a_frame() is most
    most.close()
    rig.budget.watch()
    assert free_a_frame() is more
    more.close()
    rig.budget.watch()
    assert free_a_frame() is None
    assert rig.shares.freed is least
    least.close()
    assert rig.shares.freed is None


def test_a_large_frame_is_let_through_before_small_ones() -> None:
    rig = Rig()
    small, large = rig.share(), rig.share()
    for share, held in ((small, 4), (large, 5 * MIB)):
        share.charge(held)
        rig.shares.wait(share)
    rig.peers[large].is_inside_large_frame = True
    rig.budget.watch()
    assert rig.budget.stuck() == [[large, small]]


def test_one_that_waits_for_its_own_share_is_stuck_though_others_move() -> None:
    rig = Rig()
    greedy, neighbour, other = rig.share("greedy"), rig.share("n"), rig.share("other", "o")
    for share in (greedy, neighbour, other):
        share.charge(10)
        rig.shares.wait(share)
    greedy.barred, neighbour.barred = greedy.principal, neighbour.address
    rig.budget.watch()
    assert rig.budget.stuck() == [[greedy], [neighbour], [other]]
    other.refund(1)
    assert rig.budget.stuck() == [[greedy], [neighbour]]
    neighbour.refund(1)
    assert rig.budget.stuck() == [[greedy]], "both come from one address"
    greedy.refund(1)
    assert rig.budget.stuck() == []


def test_small_frames_are_no_progress_for_large_ones() -> None:
    rig = Rig()
    share = rig.share()
    share.charge(2 * CHUNK_BYTES)
    rig.shares.wait(share)
    assert rig.budget.stuck() == [], "no watch has begun"
    rig.budget.watch()
    share.refund(CHUNK_BYTES)
    assert rig.budget.stuck() == [[share]]
    share.refund(CHUNK_BYTES - 1)
    assert rig.budget.stuck() == []


def test_one_that_gives_up_is_of_those_that_wait_for_the_same() -> None:
    rig = Rig()
    freed, beside, stranger = rig.share("a"), rig.share("a"), rig.share("b")
    for share in (freed, beside, stranger):
        share.charge(10)
        rig.shares.wait(share)
    freed.barred = beside.barred = freed.principal
    rig.budget.watch()
    own, others = rig.budget.stuck()
    assert rig.shares.free_a_frame(own) is None
    assert rig.shares.freed is freed
    assert rig.shares.free_a_frame(others) is None
    assert rig.shares.freed is freed, "one at a time"
    assert rig.shares.free_a_frame(own) is beside


def test_the_next_of_a_group_is_let_through_when_a_frame_has_ended() -> None:
    rig = Rig()
    shares = [rig.share(str(number)) for number in range(4)]
    for held, share in enumerate(shares, 1):
        share.charge(held)
        rig.shares.wait(share)
    first, gone, next_one, last = shares
    rig.shares.free_next()
    assert rig.shares.freed is None, "none is stuck"
    rig.budget.watch()
    [stuck] = rig.budget.stuck()
    rig.shares.free_a_frame(stuck)
    rig.shares.free_next()
    assert rig.shares.freed is first
    assert rig.served() == []
    gone.close()
    first.close()
    rig.shares.free_next()
    assert rig.shares.freed is next_one
    assert rig.served() == [next_one]
    rig.peers[next_one].is_inside_large_frame = True
    rig.shares.free_next()
    assert rig.shares.freed is next_one
    rig.peers[next_one].is_inside_large_frame = False
    rig.peers[last].goes_on = False
    rig.shares.free_next()
    assert (rig.shares.freed, last.is_waiting) == (last, True)
    last.close()
    rig.shares.free_next()
    assert rig.shares.freed is None


def test_nothing_is_let_through_while_nothing_is_held() -> None:
    rig = Rig()
    rig.shares.wait(rig.share())
    rig.budget.watch()
    assert rig.budget.stuck() == []


def test_a_frame_that_was_let_through_is_under_way_until_it_has_ended() -> None:
    rig = Rig()
    share = rig.share()
    assert not share.needs_to_be_free
    rig.peers[share].is_inside_large_frame = True
    assert share.needs_to_be_free
    rig.peers[share].is_inside_large_frame = False
    rig.shares.wait(share)
    assert share.needs_to_be_free


def test_the_next_frame_is_let_through_once_the_last_one_does_not_wait() -> None:
    rig = Rig()
    first, second = rig.share("a", "a"), rig.share("b", "b")
    for share in (first, second):
        share.charge(10)
        rig.shares.wait(share)
    rig.budget.watch()
    [stuck] = rig.budget.stuck()
    rig.shares.free_a_frame(stuck)
    freed = rig.shares.freed
    assert freed is not None
    rig.shares.leave_line(freed)
    rig.budget.watch()
    [stuck] = rig.budget.stuck()
    assert rig.shares.free_a_frame(stuck) is None
    assert rig.shares.freed is ({first, second} - {freed}).pop()
