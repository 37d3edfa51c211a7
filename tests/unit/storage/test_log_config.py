"""What a log makes of its topic's configuration."""

from __future__ import annotations

import pytest

from moldau.protocol.records import Codec
from moldau.storage.log_config import LogConfig


@pytest.mark.parametrize(
    ("compression_type", "level"),
    [("gzip", 5), ("lz4", 6), ("zstd", 7), ("snappy", None), ("uncompressed", None)],
)
def test_each_codec_has_its_own_level(compression_type: str, level: int | None) -> None:
    config = LogConfig(
        compression_type=compression_type,
        compression_gzip_level=5,
        compression_lz4_level=6,
        compression_zstd_level=7,
    )
    assert config.compression_level == level


def test_minus_one_is_gzips_own_default() -> None:
    config = LogConfig(compression_type="gzip", compression_gzip_level=-1)
    assert (config.target_codec, config.compression_level) == (Codec.GZIP, None)
