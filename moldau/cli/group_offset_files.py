"""Offsets as CSV, in the form of kafka-consumer-groups: `topic,partition,offset`, with the group
in front where there are several.

Owns the form. Must not know a cluster. Invariant: what is read names no partition twice.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from moldau.cli.output import fail
from moldau.client import TopicPartition

MAX_FILE_BYTES: Final = 64 * 1024 * 1024
MAX_OFFSET: Final = 2**63 - 1
FORM: Final = "topic,partition,offset or group,topic,partition,offset"

GroupOffsets = dict[str | None, dict[TopicPartition, int]]
"""Offsets by group; None where lines name no group."""


def offsets_csv(offsets: Mapping[str, Mapping[TopicPartition, int]]) -> str:
    """Offsets of groups as a file's text."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    for group_id, partitions in offsets.items():
        group = (group_id,) if len(offsets) > 1 else ()
        for partition, offset in sorted(partitions.items()):
            writer.writerow((*group, *partition, offset))
    return file.getvalue()


def read_offsets(path: Path) -> GroupOffsets:
    """The offsets in a file; exits with status 2 when it cannot be read or has another form."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            fail(f"{path}: over {MAX_FILE_BYTES} bytes", status=2)
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        fail(f"{path}: {error.strerror or error}", status=2)
    except UnicodeDecodeError as error:
        fail(f"{path}: not UTF-8: {error}", status=2)
    try:
        return parse_offsets(text)
    except (ValueError, csv.Error) as error:
        fail(f"{path}: {error}", status=2)


def parse_offsets(text: str) -> GroupOffsets:
    """The offsets in a file's text. Raises: ValueError, with one line that says what is wrong."""
    found: GroupOffsets = {}
    reader = csv.reader(io.StringIO(text), strict=True)
    for row in reader:
        cells = [cell.strip() for cell in row]
        if not any(cells):
            continue
        where = f"line {reader.line_num}"
        if len(cells) not in (3, 4):
            raise ValueError(f"{where} has {len(cells)} columns, not {FORM}")
        topic, index, offset = cells[-3:]
        group_id = cells[0] if len(cells) == 4 else None
        if not topic or not _is_number(index) or not _is_number(offset):
            raise ValueError(f"{where} is not {FORM}")
        partition = TopicPartition(topic, int(index))
        offsets = found.setdefault(group_id, {})
        if partition in offsets:
            raise ValueError(f"{where}: {partition} is named twice")
        if int(offset) > MAX_OFFSET or partition.partition >= 2**31:
            raise ValueError(f"{where}: a number is too big")
        offsets[partition] = int(offset)
    if not found:
        raise ValueError(f"no lines of the form {FORM}")
    if None in found and len(found) > 1:
        raise ValueError("some lines name a group, others do not")
    return found


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()
