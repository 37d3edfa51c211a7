"""Compression: the byte formats other clients write, levels, and bounded decompression."""

from __future__ import annotations

import struct
import subprocess
import sys
import textwrap
import zlib
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.protocol.records import (
    Codec,
    InvalidBatch,
    InvalidBatchReason,
    encode_batch,
)
from moldau.protocol.records.compression import LEVEL_RANGES, compress, decompress

COMPRESSED = [codec for codec in Codec if codec]
TEXT = b"the quick brown fox jumps over the lazy dog; " * 4_000


@pytest.mark.parametrize("codec", Codec)
@settings(max_examples=60, deadline=None)
@given(data=st.binary(max_size=3_000), repeat=st.integers(1, 60))
def test_round_trip_within_exactly_its_size(codec: Codec, data: bytes, repeat: int) -> None:
    data = data * repeat
    packed = compress(data, codec)
    assert bytes(decompress(packed, codec, len(data))) == data
    if data:
        with pytest.raises(InvalidBatch) as caught:
            decompress(packed, codec, len(data) - 1)
        assert caught.value.reason is InvalidBatchReason.TOO_LARGE


@pytest.mark.parametrize("codec", LEVEL_RANGES)
def test_levels_are_checked_and_matter(codec: Codec) -> None:
    low, high = LEVEL_RANGES[codec]
    sizes = {}
    for level in {low, 1, 3, high}:
        packed = compress(TEXT, codec, level)
        assert bytes(decompress(packed, codec, len(TEXT))) == TEXT
        sizes[level] = len(packed)
    assert sizes[high] < sizes[low]
    for level in (low - 1, high + 1):
        with pytest.raises(ValueError, match="level"):
            compress(TEXT, codec, level)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.SNAPPY])
def test_codecs_without_levels_refuse_one(codec: Codec) -> None:
    with pytest.raises(ValueError, match="no compression level"):
        compress(TEXT, codec, 1)


def test_snappy_is_written_in_snappy_javas_stream_form() -> None:
    packed = bytes(compress(TEXT, Codec.SNAPPY))
    assert packed[:16] == b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    blocks, position = 0, 16
    while position < len(packed):
        (size,) = struct.unpack_from(">i", packed, position)
        position += 4 + size
        blocks += 1
    assert position == len(packed)
    assert blocks == -(-len(TEXT) // 32_768)


def test_unframed_snappy_is_read() -> None:
    from cramjam import snappy

    assert bytes(decompress(bytes(snappy.compress_raw(TEXT)), Codec.SNAPPY)) == TEXT


def test_little_endian_snappy_versions_are_read() -> None:
    # Some producers write the stream header's two version numbers the wrong way round.
    packed = bytearray(compress(TEXT, Codec.SNAPPY))
    packed[8:16] = struct.pack("<ii", 1, 1)
    assert bytes(decompress(packed, Codec.SNAPPY)) == TEXT


def test_lz4_frame_flags_are_what_kafkas_reader_requires() -> None:
    packed = bytes(compress(TEXT, Codec.LZ4))
    assert packed[:4] == bytes.fromhex("04224d18")
    flags, block_descriptor = packed[4], packed[5]
    assert flags >> 6 == 1, "version"
    assert flags & 0x20, "independent blocks"
    assert not flags & 0x08, "no content size"
    assert block_descriptor == 0x40, "64 KB blocks"


def test_lz4_with_checksums_content_size_and_linked_blocks_is_read() -> None:
    from lz4 import frame

    for linked in (False, True):
        packed = frame.compress(
            TEXT, block_linked=linked, content_checksum=True, block_checksum=True, store_size=True
        )
        assert bytes(decompress(packed, Codec.LZ4)) == TEXT


def test_several_gzip_members_and_zstd_frames_are_one_stream() -> None:
    both = bytes(compress(b"one", Codec.GZIP)) + bytes(compress(b"two", Codec.GZIP))
    assert bytes(decompress(both, Codec.GZIP, 6)) == b"onetwo"
    both = bytes(compress(b"one", Codec.ZSTD)) + bytes(compress(b"two", Codec.ZSTD))
    skippable = struct.pack("<II", 0x184D2A53, 4) + b"skip"
    assert bytes(decompress(skippable + both, Codec.ZSTD, 6)) == b"onetwo"


@pytest.mark.parametrize("flush_every", [1_000, 200_000])
def test_streamed_zstd_without_content_size_is_read(flush_every: int) -> None:
    import zstandard

    stream = zstandard.ZstdCompressor(level=22, write_checksum=True).compressobj()
    packed = b""
    for start in range(0, len(TEXT), flush_every):
        packed += stream.compress(TEXT[start : start + flush_every])
        packed += stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    packed += stream.flush()
    assert bytes(decompress(packed, Codec.ZSTD, len(TEXT))) == TEXT
    with pytest.raises(InvalidBatch) as caught:
        decompress(packed, Codec.ZSTD, len(TEXT) - 1)
    assert caught.value.reason is InvalidBatchReason.TOO_LARGE


@pytest.mark.parametrize("codec", COMPRESSED)
def test_cut_or_garbled_streams_are_refused_or_harmless(codec: Codec) -> None:
    data = TEXT[:20_000] + bytes(range(256)) * 8
    packed = bytes(compress(data, codec))
    for size in list(range(40)) + list(range(40, len(packed), 97)):
        if codec is Codec.SNAPPY and size == 16:
            continue  # a stream of no blocks is whole
        with pytest.raises(InvalidBatch) as caught:
            decompress(packed[:size], codec, len(data))
        assert caught.value.reason in (
            InvalidBatchReason.BAD_COMPRESSION,
            InvalidBatchReason.TOO_LARGE,
        )
    with pytest.raises(InvalidBatch):
        decompress(packed + b"rest", codec, len(data) + 1_000)
    for at in range(0, len(packed), 5):
        garbled = bytearray(packed)
        garbled[at] ^= 0xFF
        with suppress(InvalidBatch):
            assert len(decompress(garbled, codec, len(data))) <= len(data)


@settings(max_examples=300, deadline=None)
@given(codec=st.sampled_from(COMPRESSED), data=st.binary(max_size=300), framed=st.booleans())
def test_random_bytes_raise_only_invalid_batch(codec: Codec, data: bytes, framed: bool) -> None:
    prefix = {
        Codec.GZIP: b"\x1f\x8b\x08\x00",
        Codec.SNAPPY: b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01",
        Codec.LZ4: bytes.fromhex("04224d186040"),
        Codec.ZSTD: bytes.fromhex("28b52ffd"),
    }[codec]
    with suppress(InvalidBatch):
        assert len(decompress(prefix + data if framed else data, codec, 10_000)) <= 10_000


def test_a_snappy_preamble_that_lies_allocates_nothing() -> None:
    from moldau.protocol.records.compression import DEFAULT_MAX_DECOMPRESSED_BYTES

    lie = b"\xff\xff\xff\x3f" + b"\x00" * 10  # 128 MB minus one from ten bytes
    with pytest.raises(InvalidBatch) as caught:
        decompress(lie, Codec.SNAPPY, DEFAULT_MAX_DECOMPRESSED_BYTES)
    assert caught.value.reason is InvalidBatchReason.BAD_COMPRESSION


def test_a_zstd_window_beyond_the_decoders_limit_is_refused() -> None:
    frame = bytes.fromhex("28b52ffd") + b"\x00" + b"\xf8" + b"\x01\x00\x00"
    with pytest.raises(InvalidBatch, match="window"):
        decompress(frame, Codec.ZSTD)


_BOMB = textwrap.dedent(
    """
    import sys
    from moldau.protocol.records import Codec, InvalidBatch, decode_records
    from moldau.protocol.records.compression import decompress

    def peak_kib():
        try:
            with open("/proc/self/status") as status:
                for line in status:
                    if line.startswith("VmHWM"):
                        return int(line.split()[1])
        except FileNotFoundError:
            pass
        import resource
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak // 1024 if sys.platform == "darwin" else peak

    codec = Codec(int(sys.argv[1]))
    bomb = sys.stdin.buffer.read()
    decompress(bytes.fromhex(sys.argv[2]), codec, 100)   # the library is loaded now
    before = peak_kib()
    reasons = []
    for call in (
        lambda: decompress(bomb, codec, 4 << 20),
        lambda: decode_records(
            bytes(8) + (len(bomb) + 49).to_bytes(4, "big") + bytes(4) + b"\\x02" + bytes(5)
            + bytes([codec]) + bytes(34) + (1).to_bytes(4, "big") + bomb,
            max_bytes=4 << 20,
        ),
    ):
        try:
            call()
        except InvalidBatch as error:
            reasons.append(error.reason.name)
    print(*reasons, peak_kib() - before)
    """
)


def bomb_of(codec: Codec) -> bytes:
    """Bytes that grow to at least 256 MB."""
    size = 256 << 20
    if codec is Codec.ZSTD:
        # Run-length blocks of 128 KB each, four bytes per block; no content size is claimed.
        block = struct.pack("<I", 131_072 << 3 | 1 << 1)[:3] + b"\x00"
        last = struct.pack("<I", 131_072 << 3 | 1 << 1 | 1)[:3] + b"\x00"
        return bytes.fromhex("28b52ffd") + b"\x00\x58" + block * (size // 131_072) + last
    if codec is Codec.GZIP:
        packer = zlib.compressobj(9, zlib.DEFLATED, 31)
        chunk = bytes(1 << 20)
        return b"".join(packer.compress(chunk) for _ in range(256)) + packer.flush()
    if codec is Codec.SNAPPY:
        packed = bytes(compress(bytes(1 << 20), codec))
        return packed[:16] + packed[16:] * 256
    packed = bytes(compress(bytes(1 << 20), codec))
    return packed[:7] + packed[7:-4] * 256 + packed[-4:]


@pytest.mark.real
@pytest.mark.parametrize("codec", COMPRESSED)
def test_a_bomb_is_refused_within_bounded_memory(codec: Codec) -> None:
    bomb = bomb_of(codec)
    small = bytes(compress(b"warm", codec)).hex()
    run = subprocess.run(
        [sys.executable, "-c", _BOMB, str(int(codec)), small],
        input=bomb,
        capture_output=True,
        check=True,
    )
    first, second, grown_kib = run.stdout.decode().split()
    assert (first, second) == ("TOO_LARGE", "TOO_LARGE")
    # Limit 4 MB, the bomb itself twice (up to 24 MB for snappy), the decoder's window.
    assert int(grown_kib) < 24 * 1024 + 3 * len(bomb) // 1024


@pytest.mark.parametrize("codec", COMPRESSED)
def test_the_bombs_are_real(codec: Codec) -> None:
    """With room enough they are valid streams: the refusal is for their size, not their form."""
    size = 257 << 20
    assert len(decompress(bomb_of(codec), codec, size)) >= 256 << 20


def test_compressed_batches_are_smaller() -> None:
    from .records_strategies import sample_records

    records = sample_records(300)
    plain = len(encode_batch(records))
    for codec in COMPRESSED:
        assert len(encode_batch(records, codec=codec)) < plain
