"""Byte equality with `kio`, an independent implementation with one class per message and version.

For every message and version that kio has, random values are put into both libraries' classes:
both must write the same bytes and read the other's. What kio lacks is listed here and has golden
bytes instead (`test_golden.py`).
"""

from __future__ import annotations

import datetime
import io
import random
import zlib
from dataclasses import Field, fields, is_dataclass
from importlib import import_module
from types import UnionType
from typing import Any, get_args, get_origin
from uuid import UUID

import pytest

from moldau.protocol.schema import Message
from moldau.protocol.types import ZERO_UUID
from tests.protocol.instances import all_versions, is_spoken

kio_index = pytest.importorskip("kio.schema.index")
kio_serial = pytest.importorskip("kio.serial")
kio_errors = pytest.importorskip("kio.schema.errors")

INSTANCES_PER_VERSION = 4

KIO_NAMES = {
    "api_key": "request_api_key",
    "api_version": "request_api_version",
    "kraft_version": "k_raft_version",
    "kraft_version_feature": "k_raft_version_feature",
}
"""Fields that kio calls something else; it also drops the unit at the end of names."""

ABSENT_FROM_KIO: dict[str, list[int]] = {}
"""Messages and versions without a class in kio; metadata and coordinator records come on top."""


def _kio_places() -> dict[tuple[str, int], str]:
    return {
        (path.partition(":")[2], version): path
        for versions in kio_index.schema_name_map.values()
        for version, by_kind in versions.items()
        for path in by_kind.values()
    }


KIO_PLACES = _kio_places()
"""Module and name of each class. It is imported when its test runs: all of them take seconds."""


def kio_class_of(name: str, version: int) -> type[Any]:
    module_name, _, class_name = KIO_PLACES[name, version].partition(":")
    found: type[Any] = getattr(import_module(module_name), class_name)
    return found


COVERED = [
    (message_class, version)
    for message_class, version in all_versions()
    if (message_class.__name__, version) in KIO_PLACES
]


class TwinMaker:
    """Makes the same random message in both libraries."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def make(self, ours: Any, theirs: type[Any]) -> tuple[Any, Any]:
        """Instances of `ours` and `theirs` with equal contents."""
        our_values, their_values = {}, {}
        field_types = {spec.name: spec.type for spec in ours.spec().fields}
        their_fields = {field.name: field for field in fields(theirs)}
        for name, field_type in field_types.items():
            for their_name in (
                name,
                f"{name}_",
                name.removesuffix("_ms"),
                KIO_NAMES.get(name, name),
            ):
                their_field = their_fields.pop(their_name, None)
                if their_field is not None:
                    our_values[name], their_values[their_name] = self._content(
                        field_type, their_field
                    )
                    break
        assert not their_fields, f"{ours.__name__} lacks {sorted(their_fields)}"
        return ours(**our_values), theirs(**their_values)

    def _content(self, ours: Any, theirs: Field[Any]) -> tuple[Any, Any]:
        kind, is_nullable = _without_none(theirs.type)
        if is_nullable and self._random.random() < 0.2:
            match theirs.metadata.get("kafka_type"):
                case _ if get_origin(kind) is tuple:
                    return None, None
                case "uuid":
                    return ZERO_UUID, None
                case "datetime_i64":
                    return -1, None
                case _:
                    return None, None
        if get_origin(kind) is not tuple:
            return self._value(ours, kind, theirs)
        element, _ = _without_none(get_args(kind)[0])
        pairs = [
            self._value(ours.element, element, theirs) for _ in range(self._random.randint(0, 3))
        ]
        return [pair[0] for pair in pairs], tuple(pair[1] for pair in pairs)

    def _value(self, ours: Any, kind: Any, theirs: Field[Any]) -> tuple[Any, Any]:
        if is_dataclass(kind):
            return self.make(ours.struct, kind)
        chosen = self._random
        kafka_type = theirs.metadata["kafka_type"]
        match kafka_type:
            case "bool":
                return (chosen.random() < 0.5,) * 2
            case "string":
                return ("".join(chosen.choices("abc-ß漢", k=chosen.randint(0, 150))),) * 2
            case "bytes" | "records":
                return (chosen.randbytes(chosen.randint(0, 150)),) * 2
            case "float64":
                return (chosen.uniform(-1e9, 1e9),) * 2
            case "uuid":
                return (UUID(bytes=chosen.randbytes(16)),) * 2
            case "error_code":
                code = chosen.choice(list(kio_errors.ErrorCode))
                return int(code), code
            case "timedelta_i32" | "timedelta_i64":
                milliseconds = chosen.randint(-(2**31), 2**31 - 1)
                return milliseconds, datetime.timedelta(milliseconds=milliseconds)
            case "datetime_i64":
                milliseconds = chosen.randint(0, 4_000_000_000_000)
                epoch = datetime.datetime.fromtimestamp(0, datetime.UTC)
                return milliseconds, epoch + datetime.timedelta(milliseconds=milliseconds)
            case _:
                bits = int(kafka_type.removeprefix("u").removeprefix("int"))
                low, high = (
                    (0, 2**bits - 1)
                    if kafka_type[0] == "u"
                    else (
                        -(2 ** (bits - 1)),
                        2 ** (bits - 1) - 1,
                    )
                )
                return (chosen.choice((low, high, 0, 1, chosen.randint(low, high))),) * 2


def _without_none(kind: Any) -> tuple[Any, bool]:
    if get_origin(kind) is not UnionType:
        return kind, False
    members = [member for member in get_args(kind) if member is not type(None)]
    return members[0], True


def test_what_kio_lacks_is_known() -> None:
    absent: dict[str, list[int]] = {}
    for message_class, version in all_versions():
        is_record = message_class.__module__.split(".")[2].endswith("_records")
        if not is_record and (message_class, version) not in COVERED:
            absent.setdefault(message_class.__name__, []).append(version)
    assert absent == ABSENT_FROM_KIO


def test_kio_has_nothing_that_we_lack_but_what_is_not_spoken() -> None:
    ours = {(message_class.__name__, version) for message_class, version in all_versions()}
    assert {name for name, _ in set(KIO_PLACES) - ours if is_spoken(name)} == set()
    assert all(is_spoken(name) for name, _ in ours)


@pytest.mark.parametrize(
    ("message_class", "version"), COVERED, ids=lambda part: getattr(part, "__name__", None)
)
def test_bytes_are_those_of_kio(message_class: type[Message], version: int) -> None:
    kio_class = kio_class_of(message_class.__name__, version)
    write = kio_serial.entity_writer(kio_class)
    read = kio_serial.entity_reader(kio_class)
    seed = zlib.crc32(f"kio {message_class.__name__} {version}".encode())
    print("seed", seed)
    maker = TwinMaker(seed)
    for _ in range(INSTANCES_PER_VERSION):
        ours, theirs = maker.make(message_class, kio_class)
        written = io.BytesIO()
        write(written, theirs)
        assert ours.to_bytes(version) == written.getvalue()
        assert message_class.decode(written.getvalue(), version) == (ours, len(written.getvalue()))
        assert read(ours.to_bytes(version), 0)[0] == theirs
