"""Options as Spark hands them over, to typed values.

Owns what source and sink have in common: which names there are, the nearest one for a name that is
not there, conversion, ranges, and the way of `kafka.*` to the client's settings. Must not know what
single options mean. Invariant: an option that is read is of its type and within its range; anything
else is one `InvalidOption` that names the option, what was given and what is allowed.

Spark compares option names without case and hands them over in lower case; errors show them as they
are documented.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Final

from moldau.spark_connector.errors import InvalidOption
from moldau.text import did_you_mean

KAFKA_PREFIX: Final = "kafka."
BOOTSTRAP_SERVERS: Final = "bootstrap.servers"
#: Options that say what is read, and mean nothing to a write.
ONLY_READ: Final = (
    "assign",
    "subscribe",
    "subscribePattern",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxRecordsPerPartition",
    "failOnDataLoss",
    "groupIdPrefix",
)
MAX_INT: Final = 2**31 - 1
MAX_LONG: Final = 2**63 - 1

_DURATION: Final = re.compile(r"(-?\d+)([a-z]*)")
_MS_OF_UNIT: Final = {
    "us": 0.001,
    "ms": 1,
    "s": 1_000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}


class OptionReader:
    """The options of one read or write.

    Args:
        given: as Spark hands them over; names in any case.
        known: every option there is, in its documented spelling.
        elsewhere: options that make sense in another place, and what to say about them.
        refused_kafka: keys after `kafka.` that cannot be passed on, and why.
        what: "source" or "sink", for the errors.

    Raises:
        InvalidOption: a name that is in none of these, or a refused key.
    """

    def __init__(
        self,
        given: Mapping[str, str],
        *,
        known: Collection[str],
        elsewhere: Mapping[str, str],
        refused_kafka: Mapping[str, str],
        what: str,
    ) -> None:
        self._what = what
        self._given = {name.lower(): value for name, value in given.items()}
        spelled = {name.lower(): name for name in known}
        misplaced = {name.lower(): (name, reason) for name, reason in elsewhere.items()}
        for name in sorted(self._given):
            if name.startswith(KAFKA_PREFIX):
                reason = refused_kafka.get(name.removeprefix(KAFKA_PREFIX))
                if reason is not None:
                    raise InvalidOption(f"{name} is not supported: {reason}")
            elif name in misplaced:
                shown, reason = misplaced[name]
                raise InvalidOption(f"{shown} is not an option of the {what}: {reason}")
            elif name not in spelled:
                raise InvalidOption(_unknown(name, spelled, what))

    def has(self, name: str) -> bool:
        return name.lower() in self._given

    def text(self, name: str) -> str | None:
        return self._given.get(name.lower())

    def boolean(self, name: str, default: bool) -> bool:
        given = self.text(name)
        if given is None:
            return default
        lowered = given.strip().lower()
        if lowered not in ("true", "false"):
            raise InvalidOption(f"{name}={given!r}: true or false")
        return lowered == "true"

    def whole_number(self, name: str, *, lowest: int, highest: int = MAX_LONG) -> int | None:
        """A whole number in the range, both ends included; None when it was not given."""
        given = self.text(name)
        if given is None:
            return None
        number = whole_number_of(given)
        if number is None or not lowest <= number <= highest:
            raise InvalidOption(f"{name}={given!r}: a whole number from {lowest} to {highest}")
        return number

    def duration_ms(self, name: str, default_ms: int) -> int:
        """The milliseconds of a time such as `15m`, `30s`, `500ms` and, as in Spark, `500`."""
        given = self.text(name)
        if given is None:
            return default_ms
        match = _DURATION.fullmatch(given.strip().lower())
        unit_ms = None if match is None else _MS_OF_UNIT.get(match[2] or "ms")
        if match is None or unit_ms is None or int(match[1]) < 0:
            units = ", ".join(_MS_OF_UNIT)
            raise InvalidOption(f"{name}={given!r}: a time such as 15m or 500ms (units: {units})")
        return int(int(match[1]) * unit_ms)

    def choice(self, name: str, default: str, *allowed: str) -> str:
        """One of several words, in any case; the result is spelled as in `allowed`."""
        given = self.text(name)
        if given is None:
            return default
        found = {word.lower(): word for word in allowed}.get(given.strip().lower())
        if found is None:
            raise InvalidOption(f"{name}={given!r}: one of {', '.join(allowed)}")
        return found

    def kafka_settings(self) -> dict[str, str]:
        """What was given as `kafka.KEY`, by key: for the configuration of a client. Raises:
        InvalidOption: `kafka.bootstrap.servers` is missing
        """
        settings = {
            name.removeprefix(KAFKA_PREFIX): value
            for name, value in self._given.items()
            if name.startswith(KAFKA_PREFIX)
        }
        if not settings.get(BOOTSTRAP_SERVERS, "").strip():
            raise InvalidOption(
                f"{KAFKA_PREFIX}{BOOTSTRAP_SERVERS} is missing: the {self._what} needs at least "
                "one HOST:PORT to begin with"
            )
        return settings


def whole_number_of(given: str) -> int | None:
    stripped = given.strip()
    digits = stripped[1:] if stripped[:1] in ("-", "+") else stripped
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 19:
        return None
    return int(stripped)


def _unknown(name: str, spelled: Mapping[str, str], what: str) -> str:
    names = sorted(spelled.values(), key=str.lower)
    known = [*names, f"{KAFKA_PREFIX}{BOOTSTRAP_SERVERS}"]
    hint = did_you_mean(name, known, f"; there are {', '.join(names)}, and kafka.*")
    return f"{name}: the {what} has no such option{hint}"
