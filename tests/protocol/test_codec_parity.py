"""The compiled codecs against the interpreter of the same schema, for every class and version."""

from __future__ import annotations

import zlib

import pytest

from moldau.protocol.schema import Message
from tests.protocol import interpreter
from tests.protocol.instances import InstanceMaker, all_versions

INSTANCES_PER_VERSION = 6


@pytest.mark.parametrize(
    ("message_class", "version"), all_versions(), ids=lambda part: getattr(part, "__name__", None)
)
def test_compiled_and_interpreted_agree(message_class: type[Message], version: int) -> None:
    seed = zlib.crc32(f"{message_class.__name__} {version}".encode())
    print("seed", seed)
    maker = InstanceMaker(seed)
    for message in [
        message_class(),
        *(maker.make(message_class, version) for _ in range(INSTANCES_PER_VERSION)),
    ]:
        encoded = message.to_bytes(version)
        assert encoded == interpreter.encode(message, version)
        framed = b"\xaa" + encoded + b"\xbb\xbb"
        for buffer in (framed, bytearray(framed), memoryview(framed)):
            decoded, position = message_class.decode(buffer, version, 1)
            assert position == 1 + len(encoded)
            assert decoded == message
        assert interpreter.decode(message_class, framed, version, 1) == (message, position)
