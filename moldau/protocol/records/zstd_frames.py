"""Walk the frames and blocks of zstd data (RFC 8878) without decompressing them.

Owns one question: how much can this decompress to? The answer comes from the block headers, so a
frame that claims nothing (Java's stream writer) or lies about its content size is bounded alike.
Invariant: reads only inside the given view; needs no memory.
"""

from __future__ import annotations

from typing import Final

from moldau.protocol.records.invalid_batch import InvalidBatch, InvalidBatchReason

_FRAME_MAGIC: Final = 0xFD2FB528
_SKIPPABLE_MAGIC: Final = 0x184D2A50
_SKIPPABLE_MASK: Final = 0xFFFFFFF0
_MAX_BLOCK_BYTES: Final = 128 * 1024
MAX_WINDOW_BYTES: Final = 1 << 27
"""Largest window a decoder accepts by default; level 22 asks for all of it."""

_RAW, _RLE, _COMPRESSED = 0, 1, 2
_CONTENT_SIZE_BYTES: Final = (0, 2, 4, 8)
_DICTIONARY_ID_BYTES: Final = (0, 1, 2, 4)


def _corrupt(detail: str) -> InvalidBatch:
    return InvalidBatch(InvalidBatchReason.BAD_COMPRESSION, f"invalid zstd data: {detail}")


def _little_endian(view: memoryview, position: int, size: int) -> int:
    if position + size > len(view):
        raise _corrupt("ends early")
    return int.from_bytes(view[position : position + size], "little")


def zstd_size_bound(view: memoryview, enough_bytes: int) -> int:
    """Upper bound of the decompressed size of all frames in `view`, in bytes.

    Counting stops beyond `enough_bytes`: a bomb is not walked to its end. Raises: InvalidBatch
    (BAD_COMPRESSION) when the frame structure is broken or a window is larger than
    `MAX_WINDOW_BYTES`.
    """
    position = 0
    bound = 0
    if not len(view):
        raise _corrupt("empty")
    while position < len(view) and bound <= enough_bytes:
        magic = _little_endian(view, position, 4)
        if magic & _SKIPPABLE_MASK == _SKIPPABLE_MAGIC:
            position += 8 + _little_endian(view, position + 4, 4)
            if position > len(view):
                raise _corrupt("ends early")
            continue
        if magic != _FRAME_MAGIC:
            raise _corrupt("not a zstd frame")
        descriptor = _little_endian(view, position + 4, 1)
        window, content_size, position = _frame_header(view, position + 5, descriptor)
        frame_bound, position, is_whole = _blocks(
            view, position, min(window, _MAX_BLOCK_BYTES), enough_bytes
        )
        if not is_whole:
            return bound + frame_bound
        if content_size is not None:
            frame_bound = min(frame_bound, content_size)
        bound += frame_bound
        if descriptor & 0x04:
            _little_endian(view, position, 4)
            position += 4
    return bound


def _frame_header(view: memoryview, position: int, descriptor: int) -> tuple[int, int | None, int]:
    """(window size, content size if stated, position of the first block)."""
    single_segment = bool(descriptor & 0x20)
    window = 0
    if not single_segment:
        window_byte = _little_endian(view, position, 1)
        base = 1 << (10 + (window_byte >> 3))
        window = base + (base >> 3) * (window_byte & 7)
        position += 1
    position += _DICTIONARY_ID_BYTES[descriptor & 3]
    size_bytes = _CONTENT_SIZE_BYTES[descriptor >> 6]
    if size_bytes == 0 and single_segment:
        size_bytes = 1
    content_size = None
    if size_bytes:
        content_size = _little_endian(view, position, size_bytes)
        if size_bytes == 2:
            content_size += 256
        position += size_bytes
    if single_segment:
        assert content_size is not None
        window = content_size
    if window > MAX_WINDOW_BYTES:
        raise _corrupt(f"window of {window} bytes")
    return window, content_size, position


def _blocks(
    view: memoryview, position: int, max_block_bytes: int, enough_bytes: int
) -> tuple[int, int, bool]:
    """(sum of the blocks' largest output, position behind them, whether the last was seen)."""
    bound = 0
    last = False
    while not last and bound <= enough_bytes:
        block = _little_endian(view, position, 3)
        last = bool(block & 1)
        kind = (block >> 1) & 3
        size = block >> 3
        position += 3
        if kind == _RLE:
            bound += size
            position += 1
        elif kind == _RAW:
            bound += size
            position += size
        elif kind == _COMPRESSED:
            bound += max_block_bytes
            position += size
        else:
            raise _corrupt("reserved block type")
        if position > len(view):
            raise _corrupt("ends early")
    return bound, position, last
