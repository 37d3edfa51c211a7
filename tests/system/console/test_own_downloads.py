"""Messages as files: JSON lines, CSV, Arrow and Parquet, each cut, broken off and whole."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import aiohttp
import pytest

from moldau.client import Producer
from tests.kit.waiting import until_async
from tests.system.console.site import Site, basic
from tests.system.console.test_own_messages import ask, fill, make_topic, messages_path

pa = pytest.importorskip("pyarrow")


async def download(site: Site, topic: str, **query: Any) -> bytes:
    path = await messages_path(site, topic, "/download", **query)
    async with aiohttp.ClientSession() as session, session.get(site.origin + path) as answer:
        assert answer.status == 200, await answer.text()
        expected = f'attachment; filename="{topic}.{query["format"]}"'
        assert answer.headers["Content-Disposition"] == expected
        return await answer.read()


def table_of(kind: str, data: bytes) -> tuple[Any, dict[str, Any]]:
    """The table of a file, and what it says of its reading."""
    if kind == "parquet":
        from pyarrow import parquet

        file = parquet.ParquetFile(io.BytesIO(data))
        return file.read(), json.loads(file.metadata.metadata[b"moldau.read"])
    with pa.ipc.open_file(io.BytesIO(data)) as reader:
        last = reader.get_batch_with_custom_metadata(reader.num_record_batches - 1)
        return reader.read_all(), json.loads(last.custom_metadata[b"moldau.read"])


async def odd_topic(site: Site, name: str) -> None:
    await make_topic(site, name)
    async with Producer(config=site.cluster.client_properties) as producer:
        await producer.send(name, b'{"a": 1.0}', key=b"k,\n1", headers=[("h", b"\xff")])
        await producer.send(name, b"\xff\x00", key=None)
        await producer.send(name, None, key=b'"<b>')


async def test_json_lines_are_records(open_site: Site) -> None:
    await odd_topic(open_site, "as-lines")
    lines = (await download(open_site, "as-lines", format="jsonl")).splitlines()
    records = [json.loads(line) for line in lines]
    assert [each["offset"] for each in records] == [0, 1, 2]
    assert records[0]["value"]["text"] == '{"a": 1.0}'
    assert (records[1]["key"], records[1]["value"]["text"]) == (None, "/wA=")
    assert records[2]["value"] is None


async def test_csv_has_every_kind_of_bytes(open_site: Site) -> None:
    await odd_topic(open_site, "as-csv")
    data = await download(open_site, "as-csv", format="csv")
    head, *rows = csv.reader(io.StringIO(data.decode(), newline=""))
    found = [dict(zip(head, row, strict=True)) for row in rows]
    assert [each["offset"] for each in found] == ["0", "1", "2"]
    assert found[0]["key"] == "k,\n1"
    assert found[0]["value"] == '{"a": 1.0}'
    assert json.loads(found[0]["headers"]) == [["h", "/w=="]]
    assert (found[1]["key_encoding"], found[1]["value_encoding"]) == ("", "base64")
    assert (found[2]["key"], found[2]["value_encoding"]) == ('"<b>', "")


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
async def test_tables_have_what_a_search_finds(open_site: Site, kind: str) -> None:
    topic = f"as-{kind}"
    await make_topic(open_site, topic, 3)
    value = b'{"id": %d, "text": "' + b"x" * 500 + b'"}'
    await fill(open_site, topic, [(each % 3, value % each, each) for each in range(3_000)])
    query = {"format": kind, "where": "value.id >= 500", "value_format": "json"}
    table, report = table_of(kind, await download(open_site, topic, **query))
    assert (report["records"], report["is_complete"]) == (3_000, True)
    found = sorted(json.loads(each)["id"] for each in table.column("value").to_pylist())
    assert found == [*range(500, 3_000)]
    assert set(table.column("partition").to_pylist()) == {0, 1, 2}


@pytest.mark.parametrize("kind", ["jsonl", "csv", "arrow", "parquet"])
async def test_what_the_budget_cuts_says_so(open_site: Site, kind: str) -> None:
    topic = f"cut-{kind}"
    await make_topic(open_site, topic)
    await fill(open_site, topic, [(0, b"%d" % each, each) for each in range(100)])
    data = await download(open_site, topic, format=kind, max_records=10)
    if kind in ("arrow", "parquet"):
        table, report = table_of(kind, data)
        count = table.num_rows
    else:
        *lines, last = data.decode().splitlines()
        count = len(lines) - (kind == "csv")
        text = next(csv.reader([last]))[0] if kind == "csv" else last
        report = json.loads(text)["read"]
    assert count == 10
    assert (report["is_complete"], report["stopped_by"]) == (False, "records")


async def test_children_end_with_their_clients(open_site: Site) -> None:
    """More downloads than there may be children are left in the middle; then there is room."""
    await make_topic(open_site, "left-table")
    await fill(
        open_site, "left-table", [(0, bytes([each % 251]) * 100_000, 0) for each in range(300)]
    )
    path = await messages_path(open_site, "left-table", "/download", format="arrow")
    async with aiohttp.ClientSession() as session:
        opened = []
        while True:
            answer = await session.get(open_site.origin + path)
            if answer.status == 503:
                break
            opened.append(answer)
            assert answer.status == 200
        assert len(opened) == 4
        answer.release()
        for each in opened:
            each.close()

        async def has_room() -> Any:
            async with session.get(open_site.origin + path) as answer:
                return answer.status == 200 and len(await answer.read()) > 20_000_000

        await until_async(has_room, what="room for a table")


async def test_only_who_may_read_gets_a_file(secure_site: Site) -> None:
    await make_topic(secure_site, "a-file")
    await fill(secure_site, "a-file", [(0, b"x", 1)])
    cluster_id = await secure_site.cluster_id(basic("alice"))
    path = f"/api/v1/clusters/{cluster_id}/topics/a-file/messages/download?format="
    for kind in ("jsonl", "csv", "arrow", "parquet"):
        refused = await secure_site.ask(path + kind, basic("bob"))
        assert (refused.status, refused.document["kafka_error"]) == (
            403,
            "TOPIC_AUTHORIZATION_FAILED",
        )
    lines = await secure_site.ask(path + "jsonl", basic("alice"))
    assert lines.status == 200


async def test_odd_downloads_are_refused(open_site: Site) -> None:
    assert (await ask(open_site, "mistyped", "/download")).status == 404
    await make_topic(open_site, "refused-file")
    assert (await ask(open_site, "refused-file", "/download", format="xls")).status == 422
    assert (await ask(open_site, "refused-file", "/download", where="(")).status == 422
