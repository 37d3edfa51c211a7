"""The blocking clients have the calls of the asyncio ones, parameter by parameter."""

from __future__ import annotations

import functools
import inspect
from typing import Any, ClassVar

import pytest

from moldau.client.admin.admin import Admin
from moldau.client.consumer.consumer import Consumer
from moldau.client.producer.delivery import Delivery
from moldau.client.producer.producer import Producer
from moldau.client.sync import admin, consumer, handover, producer

FACES = [
    (Admin, admin.Admin),
    (Consumer, consumer.Consumer),
    (Producer, producer.Producer),
    (Delivery, handover.Delivery),
]

#: How the way into and through an object is called on either side.
SPECIAL = {
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
}

#: What only the blocking client calls, and what is deliberately another type.
INTERNAL_CALLS = {"call_when_done"}
OTHER_RETURNS = {("Producer", "transaction")}


def calls_of(kind: type) -> dict[str, Any]:
    """Public functions and properties by name, special ones by their blocking name."""
    return {
        SPECIAL.get(name, name): member
        for name, member in inspect.getmembers(kind)
        if (not name.startswith("_") or name in SPECIAL)
        and name not in INTERNAL_CALLS
        and (inspect.isfunction(member) or isinstance(member, property))
    } | {"__init__": kind.__init__}  # type: ignore[misc]


def parameters_of(function: Any) -> list[tuple[str, Any, Any, str]]:
    """Name, kind, default and annotation of each but `ports`: no simulation has threads."""
    return [
        (each.name, each.kind, each.default, str(each.annotation))
        for each in inspect.signature(function).parameters.values()
        if each.name != "ports"
    ]


@pytest.mark.parametrize(("asynchronous", "blocking"), FACES, ids=lambda face: face.__module__)
def test_both_faces_have_the_same_calls(asynchronous: type, blocking: type):
    wanted = calls_of(asynchronous)
    found = {
        name: member
        for name, member in inspect.getmembers(blocking, callable)
        if not name.startswith("_") or name in SPECIAL.values()
    }
    assert {*found} - {"__init__"} == {*wanted} - {"__init__"} - {
        name for name, member in wanted.items() if isinstance(member, property)
    }


@pytest.mark.parametrize(("asynchronous", "blocking"), FACES, ids=lambda face: face.__module__)
def test_each_call_takes_and_gives_the_same(asynchronous: type, blocking: type):
    for name, member in calls_of(asynchronous).items():
        if name in ("__iter__", "__enter__") or (asynchronous is Delivery and name == "__init__"):
            continue
        face = getattr(blocking, name)
        assert parameters_of(face) == parameters_of(member), name
        if (blocking.__name__, name) not in OTHER_RETURNS:
            returned = inspect.signature(face).return_annotation
            assert str(returned) == str(inspect.signature(member).return_annotation), name


@pytest.mark.parametrize(("asynchronous", "blocking"), FACES, ids=lambda face: face.__module__)
def test_nothing_of_the_blocking_face_is_to_be_awaited(asynchronous: type, blocking: type):
    awaited = [
        name
        for name, member in inspect.getmembers(blocking, callable)
        if not name.startswith("_") and inspect.iscoroutinefunction(member)
    ]
    assert awaited == []
    assert not hasattr(blocking, "__aenter__")


def test_documentation_comes_with_the_calls():
    assert admin.Admin.create_topics.__doc__ == Admin.create_topics.__doc__
    assert consumer.Consumer.seek.__doc__ == Consumer.seek.__doc__


def test_faces_are_named_as_methods_written_out():
    for face in (producer.Producer.flush, consumer.Consumer.seek, admin.Admin.list_topics):
        kind = inspect.getmodule(face)
        assert kind in (producer, consumer, admin)
        assert face.__qualname__ == f"{kind.__name__.rpartition('.')[2].title()}.{face.__name__}"


def test_a_subclass_may_wrap_and_take_over_what_it_likes():
    class Tagged:
        tag: ClassVar[str]

        def __init_subclass__(cls, *, tag: str) -> None:
            cls.tag = tag

    class Mine(producer.Producer, Tagged, tag="mine"):
        finish = producer.Producer.flush

        @functools.wraps(print)
        def helper(self) -> None: ...

    assert Mine.tag == "mine"
    assert Mine.finish.__qualname__ == "Producer.flush"
    assert Mine.helper.__qualname__ == "print"
