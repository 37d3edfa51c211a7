"""Compress and decompress the records of a batch: gzip, snappy, lz4, zstd.

A codec library is imported on its first use (start-up budget). No length inside compressed data is
trusted: decompression never returns, nor allocates for its output, more than `max_bytes`.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final

from moldau.protocol.records.header import Codec
from moldau.protocol.records.invalid_batch import InvalidBatch, InvalidBatchReason
from moldau.protocol.types import Buffer

DEFAULT_MAX_DECOMPRESSED_BYTES: Final = 128 * 1024 * 1024
"""What one batch may grow to by default."""

DEFAULT_LEVELS: Final = {Codec.GZIP: -1, Codec.LZ4: 9, Codec.ZSTD: 3}
LEVEL_RANGES: Final = {Codec.GZIP: (1, 9), Codec.LZ4: (1, 17), Codec.ZSTD: (-131072, 22)}
"""Levels of compression.{gzip,lz4,zstd}.level (KIP-390); gzip has -1 as "zlib's default" too."""

_GZIP_WBITS: Final = 31
_GZIP_MIN_CHUNK_BYTES: Final = 16 * 1024
_SNAPPY_BLOCK_BYTES: Final = 32 * 1024
_SNAPPY_MAX_RATIO: Final = 64
"""A snappy element of two bytes yields 64 at most with its run: more is a lie in the preamble."""
_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_INT32: Final = struct.Struct(">i")

_LZ4_HEADER: Final = bytes.fromhex("04224d18604082")
"""Magic number; version 1, independent blocks, no checksums; blocks of 64 KB; its own checksum."""
_LZ4_BLOCK_BYTES: Final = 64 * 1024
_LZ4_STORED: Final = 1 << 31
_LZ4_FLAGS, _LZ4_INDEPENDENT = 0b11110101, 0b01100000
"""Version, independence, checksums of blocks and content, dictionary; the content's size is not."""
_LZ4_MAX_RATIO: Final = 255
"""A byte of an lz4 block adds 255 bytes at most to a run."""

_ZSTD_MAGIC: Final = 0xFD2FB528
_SKIPPABLE_MAGIC: Final = 0x184D2A50
_SKIPPABLE_MASK: Final = 0xFFFFFFF0
_MAX_BLOCK_BYTES: Final = 128 * 1024
MAX_WINDOW_BYTES: Final = 1 << 27
"""Largest window a decoder accepts by default; level 22 asks for all of it."""

_RAW, _RLE, _COMPRESSED = 0, 1, 2
_CONTENT_SIZE_BYTES: Final = (0, 2, 4, 8)
_DICTIONARY_ID_BYTES: Final = (0, 1, 2, 4)


def check_level(codec: Codec, level: int | None) -> int | None:
    """The level to use. Raises ValueError when the codec has none or it is out of range."""
    if codec not in LEVEL_RANGES:
        if level is not None:
            raise ValueError(f"{codec.name} has no compression level")
        return None
    if level is None:
        return DEFAULT_LEVELS[codec]
    low, high = LEVEL_RANGES[codec]
    if not low <= level <= high and not (codec is Codec.GZIP and level == -1):
        raise ValueError(f"{codec.name} compression level {level} is not in {low}..{high}")
    return level


def compress(data: Buffer, codec: Codec, level: int | None = None) -> Buffer:
    """Compress the records section of a batch in the format Kafka's Java client writes.

    `level`: see `LEVEL_RANGES`; None is Kafka's default. Raises ValueError on one out of range.
    """
    level = check_level(codec, level)
    if codec is Codec.NONE:
        return data
    if codec is Codec.GZIP:
        assert level is not None
        compressor = zlib.compressobj(level, zlib.DEFLATED, _GZIP_WBITS)
        return compressor.compress(data) + compressor.flush()
    if codec is Codec.SNAPPY:
        return _compress_snappy(memoryview(data))
    if codec is Codec.LZ4:
        return _compress_lz4(data, level)
    from cramjam import zstd

    return memoryview(zstd.compress(data, level))


def decompress(
    data: Buffer, codec: Codec, max_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES
) -> Buffer:
    """Decompress a records section to at most `max_bytes`.

    Raises InvalidBatch: TOO_LARGE when the output would exceed `max_bytes`, BAD_COMPRESSION when
    the data is not a whole, exact stream of that codec.
    """
    if codec is Codec.NONE:
        if len(data) > max_bytes:
            raise _too_large(max_bytes)
        return data
    view = memoryview(data)
    if codec is Codec.GZIP:
        return _decompress_gzip(view, max_bytes)
    if codec is Codec.SNAPPY:
        return _decompress_snappy(view, max_bytes)
    if codec is Codec.LZ4:
        return _decompress_lz4(view, max_bytes)
    return _decompress_within(view, codec, _zstd_size_bound(view, max_bytes), max_bytes)


def _too_large(max_bytes: int) -> InvalidBatch:
    return InvalidBatch(
        InvalidBatchReason.TOO_LARGE, f"records decompress to more than {max_bytes} bytes"
    )


def _corrupt(codec: Codec, detail: object) -> InvalidBatch:
    return InvalidBatch(
        InvalidBatchReason.BAD_COMPRESSION, f"invalid {codec.name.lower()} data: {detail}"
    )


def _decompress_gzip(view: memoryview, max_bytes: int) -> Buffer:
    """All members of a gzip stream (RFC 1952 allows several) in one piece."""
    parts: list[bytes] = []
    size = 0
    rest: Buffer = view
    while True:
        member = zlib.decompressobj(_GZIP_WBITS)
        while not member.eof:
            if not len(rest):
                raise _corrupt(Codec.GZIP, "stream ends early")
            # Ask for one byte more than allowed: getting it proves the excess.
            room = min(max_bytes - size + 1, max(_GZIP_MIN_CHUNK_BYTES, 8 * len(rest)))
            try:
                part = member.decompress(rest, room)
            except zlib.error as error:
                raise _corrupt(Codec.GZIP, error) from None
            size += len(part)
            if size > max_bytes:
                raise _too_large(max_bytes)
            parts.append(part)
            if not part and not member.eof and not member.unconsumed_tail:
                raise _corrupt(Codec.GZIP, "stream ends early")
            rest = member.unconsumed_tail
        if not member.unused_data:
            return parts[0] if len(parts) == 1 else b"".join(parts)
        rest = member.unused_data


def _compress_snappy(view: memoryview) -> Buffer:
    """snappy-java's stream form: a 16-byte header, then length-prefixed raw snappy blocks."""
    from cramjam import snappy

    out = bytearray(_XERIAL_HEADER)
    for start in range(0, len(view), _SNAPPY_BLOCK_BYTES):
        block = snappy.compress_raw(view[start : start + _SNAPPY_BLOCK_BYTES])
        out += _INT32.pack(len(block))
        out += memoryview(block)
    return out


def _snappy_blocks(view: memoryview) -> list[memoryview]:
    """The raw snappy blocks of a framed stream, or the whole input when it is unframed.

    librdkafka and others write one unframed raw block; both start differently: a raw block
    beginning with the frame's magic byte 0x82 would continue with a length, not with `SNAPPY`.
    """
    if bytes(view[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        return [view]
    blocks = []
    position = len(_XERIAL_HEADER)
    if len(view) < position:
        raise _corrupt(Codec.SNAPPY, "stream header ends early")
    while position < len(view):
        if position + _INT32.size > len(view):
            raise _corrupt(Codec.SNAPPY, "block length ends early")
        (block_bytes,) = _INT32.unpack_from(view, position)
        position += _INT32.size
        if block_bytes <= 0 or block_bytes > len(view) - position:
            raise _corrupt(Codec.SNAPPY, f"block length {block_bytes} does not fit")
        blocks.append(view[position : position + block_bytes])
        position += block_bytes
    return blocks


def _decompress_snappy(view: memoryview, max_bytes: int) -> Buffer:
    from cramjam import DecompressionError, snappy

    try:
        blocks = _snappy_blocks(view)
        sizes = [snappy.decompress_raw_len(block) for block in blocks]
        total = sum(sizes)
        if total > max_bytes:
            raise _too_large(max_bytes)
        if total > _SNAPPY_MAX_RATIO * len(view):
            raise _corrupt(Codec.SNAPPY, f"{len(view)} bytes cannot hold {total}")
        out = bytearray(total)
        position = 0
        with memoryview(out) as target:
            for block, size in zip(blocks, sizes, strict=True):
                snappy.decompress_raw_into(block, target[position : position + size])
                position += size
    except DecompressionError as error:
        raise _corrupt(Codec.SNAPPY, error) from None
    return out


def _compress_lz4(data: Buffer, level: int | None) -> Buffer:
    """An lz4 frame as Kafka's reader wants it: independent blocks, 64 KB, no content size."""
    from cramjam import lz4

    assert level is not None
    if level != DEFAULT_LEVELS[Codec.LZ4]:
        # As Kafka reads its levels: the default means the fast compressor, every other one high
        # compression. The library's scale ends at 12, so it would clamp 13-17 anyway.
        frame = lz4.Compressor(level=min(level, 12), content_checksum=False, block_linked=False)
        frame.compress(bytes(data))
        return memoryview(frame.finish())
    out, view = bytearray(_LZ4_HEADER), memoryview(data)
    for start in range(0, len(view), _LZ4_BLOCK_BYTES):
        block = view[start : start + _LZ4_BLOCK_BYTES]
        packed = memoryview(lz4.compress_block(block, store_size=False))
        is_smaller = len(packed) < len(block)
        size = len(packed) if is_smaller else len(block) | _LZ4_STORED
        out += size.to_bytes(4, "little") + (packed if is_smaller else block)
    return out + bytes(4)


def _decompress_lz4(view: memoryview, max_bytes: int) -> Buffer:
    """Block by block, which is faster; the frame's reader knows the rest, and what is wrong."""
    from cramjam import DecompressionError, lz4

    blocks, bound = _lz4_blocks(view)
    out, size = bytearray(min(bound, max_bytes)), 0
    if view[4] & _LZ4_FLAGS != _LZ4_INDEPENDENT:
        return _decompress_within(view, Codec.LZ4, bound, max_bytes)
    try:
        with memoryview(out) as target:
            for block, is_stored in blocks:
                if is_stored:
                    target[size : size + len(block)] = block
                    size += len(block)
                else:
                    size += lz4.decompress_block_into(block, target[size:])
    except (DecompressionError, ValueError):
        return _decompress_within(view, Codec.LZ4, bound, max_bytes)
    del out[size:]
    return out


def _lz4_blocks(view: memoryview) -> tuple[list[tuple[memoryview, bool]], int]:
    """The blocks of the one frame in `view`, each with whether it is stored as it is, and an upper
    bound of their decompressed size. Raises InvalidBatch (BAD_COMPRESSION): it is not one frame.
    """
    if len(view) < len(_LZ4_HEADER) or view[:4] != _LZ4_HEADER[:4]:
        raise _corrupt(Codec.LZ4, "not a frame")
    flags, largest = view[4], 1 << (8 + 2 * (view[5] >> 4 & 7))
    position = len(_LZ4_HEADER) + (8 if flags & 0x08 else 0) + (4 if flags & 0x01 else 0)
    blocks, bound = [], 0
    while number := _little_endian(view, position, 4, Codec.LZ4):
        size, is_stored = number & ~_LZ4_STORED, bool(number & _LZ4_STORED)
        blocks.append((view[position + 4 : position + 4 + size], is_stored))
        bound += size if is_stored else min(largest, _LZ4_MAX_RATIO * size)
        position += 4 + size + (4 if flags & 0x10 else 0)
    if position + 4 + (4 if flags & 0x04 else 0) != len(view):
        raise _corrupt(Codec.LZ4, "frame ends early, or bytes follow it")
    return blocks, bound


def _decompress_within(view: memoryview, codec: Codec, bound: int, max_bytes: int) -> Buffer:
    """Frames of lz4 or zstd whose blocks cannot grow to more than `bound` bytes."""
    from cramjam import DecompressionError, lz4, zstd

    # The decoder writes into exactly this much room and fails when it needs more. The bound comes
    # from the frame's blocks, so with room for all of it running out can only mean corruption.
    out = bytearray(min(bound, max_bytes))
    try:
        size = (lz4 if codec is Codec.LZ4 else zstd).decompress_into(view, out)
    except DecompressionError as error:
        if bound > max_bytes and "write whole buffer" in str(error):
            raise _too_large(max_bytes) from None
        raise _corrupt(codec, error) from None
    del out[size:]
    return out


def _little_endian(view: memoryview, position: int, size: int, codec: Codec = Codec.ZSTD) -> int:
    if position + size > len(view):
        raise _corrupt(codec, "ends early")
    return int.from_bytes(view[position : position + size], "little")


def _zstd_size_bound(view: memoryview, enough_bytes: int) -> int:
    """Upper bound of the decompressed size of all frames in `view`, in bytes (RFC 8878).

    It comes from the block headers, so a frame that claims nothing (Java's stream writer) or lies
    about its content size is bounded alike. Counting stops beyond `enough_bytes`: a bomb is not
    walked to its end. Raises InvalidBatch (BAD_COMPRESSION) when the frame structure is broken or
    a window is larger than `MAX_WINDOW_BYTES`.
    """
    position = 0
    bound = 0
    if not len(view):
        raise _corrupt(Codec.ZSTD, "empty")
    while position < len(view) and bound <= enough_bytes:
        magic = _little_endian(view, position, 4)
        if magic & _SKIPPABLE_MASK == _SKIPPABLE_MAGIC:
            position += 8 + _little_endian(view, position + 4, 4)
            if position > len(view):
                raise _corrupt(Codec.ZSTD, "ends early")
            continue
        if magic != _ZSTD_MAGIC:
            raise _corrupt(Codec.ZSTD, "not a zstd frame")
        descriptor = _little_endian(view, position + 4, 1)
        window, content_size, position = _zstd_frame_header(view, position + 5, descriptor)
        frame_bound, position, is_whole = _zstd_blocks(
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


def _zstd_frame_header(
    view: memoryview, position: int, descriptor: int
) -> tuple[int, int | None, int]:
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
        raise _corrupt(Codec.ZSTD, f"window of {window} bytes")
    return window, content_size, position


def _zstd_blocks(
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
            raise _corrupt(Codec.ZSTD, "reserved block type")
        if position > len(view):
            raise _corrupt(Codec.ZSTD, "ends early")
    return bound, position, last
