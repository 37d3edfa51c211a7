"""Unsigned variable-length integers of 32 bits, outside of record batches: seven bits a byte,
lowest first.
"""

from moldau.constants import MAX_UINT32
from moldau.protocol.errors import RemoteProtocolError
from moldau.protocol.types import Buffer

MAX_UNSIGNED_VARINT_BYTES = 5


def read_seven_bit_groups(buffer: Buffer, position: int, max_bytes: int) -> tuple[int, int]:
    """Return the number in the bytes from `position` up to the first below 128.

    Raises RemoteProtocolError: there is none among `max_bytes` bytes, or in the buffer.
    """
    value = 0
    for shift in range(0, 7 * max_bytes, 7):
        if position >= len(buffer):
            raise RemoteProtocolError("the frame ends inside a variable-length integer")
        byte = buffer[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise RemoteProtocolError(f"a variable-length integer is longer than {max_bytes} bytes")


def read_unsigned_varint(buffer: Buffer, position: int) -> tuple[int, int]:
    """Return the unsigned 32-bit integer at `position` and the position after it.

    Raises RemoteProtocolError: it is cut short, longer than five bytes or over 32 bits.
    """
    value, position = read_seven_bit_groups(buffer, position, MAX_UNSIGNED_VARINT_BYTES)
    if value > MAX_UINT32:
        raise RemoteProtocolError("a variable-length integer is over 32 bits")
    return value, position


def unsigned_varint(value: int) -> bytes:
    """Encode an integer that is not negative."""
    if value < 0x80:
        assert value >= 0, f"{value} is negative"
        return bytes((value,))
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
