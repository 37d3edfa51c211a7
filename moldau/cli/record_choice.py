"""Which records `moldau consume` prints: `--key`, `--grep` and `--where`.

Owns these options. Must not read records. Invariant: a record is wanted when all of them want it.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from moldau.cli.output import fail, print_own, warn
from moldau.cli.typed_formats import Formats, parts_of

if TYPE_CHECKING:
    from moldau.record_filter import RecordFilter


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordChoice:
    """The options that say which of the records that are read are printed."""

    key: Annotated[str | None, "Only records with this key."] = None
    grep: Annotated[str | None, "Only records with this text in key, value or a header."] = None
    where: Annotated[
        str | None,
        "--where CONDITION",
        "Only records for which it is true, as 'value.user.id == 7 and offset > 100'; fields: "
        "topic, partition, offset, timestamp, key, value, headers (docs/filters.md).",
    ] = None

    def filter(self, typed: Formats) -> RecordFilter | None:
        """Whether a record is wanted; None where all are. What decodes keys and values may raise
        InputProblem or KafkaError. Exits with status 2 for a condition that is none.
        """
        from moldau.record_filter import all_of, with_key, with_text

        decode_key, decode_value = parts_of(typed, lambda each: each.decode_text)
        filters: list[RecordFilter] = []
        if self.key is not None:
            filters.append(with_key(os.fsencode(self.key), decode_key))
        if self.grep is not None:
            if not self.grep:
                fail("--grep: give some text", status=2)
            filters.append(with_text(os.fsencode(self.grep), decode_key, decode_value))
        if self.where is not None:
            filters.append(_with_condition(self.where, typed))
        return all_of(filters)


def _with_condition(text: str, typed: Formats) -> RecordFilter:
    from moldau.record_filter import FilterError, compile_filter

    decode_key, decode_value = parts_of(typed, lambda each: each.decode)
    try:
        return compile_filter(text, decode_key=decode_key, decode_value=decode_value)
    except FilterError as error:
        warn(f"--where: {error.message}")
        print_own("\n".join(f"  {line}" for line in error.marked()), to_stderr=True)
        sys.exit(2)
