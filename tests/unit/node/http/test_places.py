"""Who has to give up a place when all are taken, and what the limits are in seconds and bytes."""

from __future__ import annotations

from moldau.config import NodeConfig
from moldau.node.http.connections import HttpLimits
from moldau.node.http.places import Places


class Holder:
    def __init__(self, host: str, since_s: float, *, is_busy: bool = False) -> None:
        self.host = host
        self.since_s = since_s
        self.is_busy = is_busy
        self.gave_up = 0

    def give_up(self) -> None:
        self.gave_up += 1


def lost(*holders: Holder) -> list[int]:
    return [each.gave_up for each in holders]


def test_an_address_with_all_that_it_may_have_loses_one_of_its_own() -> None:
    places: Places[Holder] = Places(10, 2)
    other, busy, idle = Holder("o", 0.0), Holder("h", 1.0, is_busy=True), Holder("h", 2.0)
    for each in (other, busy, idle):
        places.take(each)
    assert lost(other, busy, idle) == [0, 0, 0]
    third = Holder("h", 3.0)
    places.take(third)
    assert lost(other, busy, idle, third) == [0, 0, 1, 0], "what is busy is ended last"
    assert set(places) == {other, busy, third}
    places.take(Holder("h", 4.0, is_busy=True))
    assert lost(busy, third) == [0, 1]
    places.take(Holder("h", 5.0))
    assert lost(busy) == [1], "the one that has been busy longest"


def test_the_address_that_has_most_gives_way_and_its_own_where_others_have_as_many() -> None:
    places: Places[Holder] = Places(3, 3)
    many, few = [Holder("m", 0.0), Holder("m", 1.0)], Holder("f", 0.0)
    for each in (*many, few):
        places.take(each)
    newcomer = Holder("n", 2.0)
    places.take(newcomer)
    assert lost(*many, few, newcomer) == [1, 0, 0, 0]
    again = Holder("f", 3.0)
    places.take(again)
    assert lost(many[1], few, newcomer, again) == [0, 1, 0, 0]


def test_a_place_that_was_left_is_free_once() -> None:
    places: Places[Holder] = Places(1, 1)
    first, second = Holder("a", 0.0), Holder("b", 1.0)
    places.take(first)
    places.leave(first)
    places.leave(first)
    places.leave(Holder("c", 0.0))
    assert list(places) == []
    assert places._by_host == {}
    places.take(second)
    assert lost(first, second) == [0, 0]
    places.take(Holder("c", 2.0))
    assert lost(second) == [1]


def test_the_limits_are_those_of_the_configuration() -> None:
    config = NodeConfig(
        {
            "node.id": "1",
            "process.roles": "broker,controller",
            "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": "1@localhost:9093",
            "moldau.http.max.connections": "700",
            "moldau.http.max.connections.per.ip": "70",
            "moldau.http.header.timeout.ms": "7000",
            "moldau.http.idle.timeout.ms": "17000",
            "moldau.http.response.timeout.ms": "27000",
            "moldau.http.max.unsent.bytes": "70000",
        }
    )
    assert HttpLimits.from_config(config) == HttpLimits(700, 70, 7.0, 17.0, 27.0, 70_000)
