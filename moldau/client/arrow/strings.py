"""One Arrow array of byte strings as a `BytesColumn`, without copying its bytes.

Owns what the layouts of Arrow's string-like types have in common: offsets of 32 or 64 bits, fixed
widths, views, dictionaries, slices. Must not know what a column means. Invariant: row i of the
result is row i of the array, whatever slice of whichever buffers it was.
"""

from __future__ import annotations

from array import array
from typing import Any, Final

from moldau.client.arrow.library import pyarrow, pyarrow_compute
from moldau.client.errors import SerializationError
from moldau.protocol.records import BytesColumn

INT32_BYTES: Final = 4
INT64_BYTES: Final = 8
MAX_COLUMN_BYTES: Final = 2**31 - 1
"""What 32-bit offsets reach; slices are cut so that they stay below (`slices`)."""


def bytes_column(name: str, values: Any) -> BytesColumn:
    """The column of an array of binary, string, or anything laid out like them.

    Views (binary_view, string_view) and dictionaries are copied into one piece, everything else is
    used where it lies.

    Raises:
        SerializationError: a type that holds no bytes, or more than 2 GB.
    """
    pa = pyarrow()
    kind = values.type
    if pa.types.is_null(kind):
        return BytesColumn()
    if pa.types.is_dictionary(kind):
        values = values.dictionary_decode()
        kind = values.type
    if pa.types.is_binary_view(kind) or pa.types.is_string_view(kind):
        values = values.cast(pa.binary())
        kind = values.type
    if pa.types.is_fixed_size_binary(kind):
        return _fixed_size(values)
    if pa.types.is_large_binary(kind) or pa.types.is_large_string(kind):
        return _large(name, values)
    if pa.types.is_binary(kind) or pa.types.is_string(kind):
        _, offsets, data = values.buffers()
        return BytesColumn(
            _int32_offsets(offsets, values.offset, len(values)), validity_of(values), _data(data)
        )
    raise SerializationError(
        f"column {name!r} is {kind}: binary or string is needed; cast it, or encode its values"
    )


def validity_of(values: Any) -> Any:
    """The bitmap of what is not null, from its first bit on; None when nothing is null."""
    if not values.null_count:
        return None
    bitmap = values.buffers()[0]
    first, bits = divmod(values.offset, 8)
    if not bits:
        return bitmap.slice(first, (len(values) + 7) // 8)
    # A slice may begin in the middle of a byte: shifted as one long number, lowest bit first.
    stop = (values.offset + len(values) + 7) // 8
    number = int.from_bytes(memoryview(bitmap)[first:stop], "little") >> bits
    return number.to_bytes(stop - first, "little")


def _int32_offsets(offsets: Any, start: int, count: int) -> Any:
    if offsets is None or not offsets.size:
        return bytes(INT32_BYTES * (count + 1))  # an empty array may come without
    return offsets.slice(INT32_BYTES * start, INT32_BYTES * (count + 1))


def _data(data: Any) -> Any:
    return b"" if data is None else data


def _fixed_size(values: Any) -> BytesColumn:
    """Rows one behind the other, nulls too: the offsets are the multiples of the width."""
    width = values.type.byte_width
    count = len(values)
    data = values.buffers()[1]
    if count * width > MAX_COLUMN_BYTES:
        raise SerializationError(f"{count} values of {width} bytes are more than 2 GB")
    offsets = array("i", range(0, (count + 1) * width, width) if width else [0] * (count + 1))
    content = b"" if data is None else data.slice(values.offset * width, count * width)
    return BytesColumn(offsets.tobytes(), validity_of(values), content)


def _large(name: str, values: Any) -> BytesColumn:
    """64-bit offsets made 32-bit ones, from the slice's first byte on; the bytes stay."""
    pa, pc = pyarrow(), pyarrow_compute()
    count = len(values)
    _, buffer, data = values.buffers()
    if not count or buffer is None:
        return BytesColumn(bytes(INT32_BYTES * (count + 1)), validity_of(values), b"")
    offsets = pa.Array.from_buffers(pa.int64(), count + 1, [None, buffer], 0, values.offset)
    first, last = offsets[0].as_py(), offsets[count].as_py()
    if last - first > MAX_COLUMN_BYTES:
        raise SerializationError(f"column {name!r} has a piece of {last - first} bytes: over 2 GB")
    narrow = pc.subtract(offsets, first).cast(pa.int32())
    content = b"" if data is None else data.slice(first, last - first)
    return BytesColumn(narrow.buffers()[1], validity_of(values), content)
