"""Spellings of one place of a checkpoint."""

from __future__ import annotations

import pytest

from moldau.spark_connector.sink.options import normal_location

HERE = "/some/me"


@pytest.mark.parametrize(
    ("normal", "spellings"),
    [
        ("/a/b", ["/a/b", "/a/b/", " /a//b", "//a/b", "/a/./b", "/a/x/../b", "file:/a/b"]),
        ("/a/b", ["file:///a/b/", "FILE:///a/b", "file://localhost/a//b"]),
        ("/some/me/c", ["c", "./c", "c/", "../me/c", "x/..//c", "/some/me/c"]),
        ("/", ["/", "//", "file:///"]),
        ("/a:b", ["/a:b"]),
        ("hdfs://nn/a", ["hdfs://nn/a", "hdfs://NN:8020/a/", "HDFS://nn//a", "hdfs://nn/b/../a"]),
        ("hdfs://nn:9000/a", ["hdfs://nn:9000/a"]),
        ("hdfs:///a", ["hdfs:///a", "hdfs:/a"]),
        ("s3a://bucket/x", ["s3a://bucket/x", "s3a://bucket/x/", "s3a://bucket//x"]),
        ("s3a://bucket", ["s3a://bucket", "s3a://bucket/"]),
        ("abfss://Box@store/x", ["abfss://Box@store/x", "abfss://Box@STORE/./x"]),
        ("file://other/a", ["file://other/a"]),
    ],
)
@pytest.mark.promise("sinkid-spellings")
def test_spellings(normal: str, spellings: list[str]) -> None:
    assert {each: normal_location(each, HERE) for each in spellings} == dict.fromkeys(
        spellings, normal
    )


@pytest.mark.promise("sinkid-spellings")
def test_other_places_stay_apart() -> None:
    places = ["/a", "/A", "a", "hdfs://nn/a", "hdfs://nn:8021/a", "s3a://nn/a", "/a%20b", "/a b"]
    assert len({normal_location(each, HERE) for each in places}) == len(places)
