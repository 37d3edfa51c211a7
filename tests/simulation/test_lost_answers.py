"""Which answers are lost, however the streams are cut."""

from __future__ import annotations

import pytest

from tests.simulation.lost_answers import REQUEST_PART, RESPONSE_PART, Frames


def frame(body: bytes) -> bytes:
    return len(body).to_bytes(4) + body


@pytest.mark.parametrize("piece_bytes", [1, 3, 7, 1_000])
@pytest.mark.parametrize("head_bytes", [RESPONSE_PART.stop, REQUEST_PART.stop])
def test_frames_are_found_whatever_the_pieces(piece_bytes: int, head_bytes: int):
    frames = [frame(bytes([number]) * size) for number, size in enumerate((8, 9, 100, 8), 1)]
    stream = b"".join(frames)
    found, reader = [], Frames()
    for start in range(0, len(stream), piece_bytes):
        found += reader.heads(stream[start : start + piece_bytes], head_bytes)
    assert found == [each[:head_bytes] for each in frames]
