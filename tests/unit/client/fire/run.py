"""Rounds of all kinds until so many records have gone through: `make soak-faces`.

Owns the command line and the sums. Must not know what a round does.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from tests.kit.soaks import seed_of, soak_parser
from tests.unit.client.fire import blocking, cancelled
from tests.unit.client.fire.account import Account

ROUND_RECORDS: Final = 20_000
HANG_S: Final = 600.0

KINDS: Final[Mapping[str, Callable[[int, int], Account]]] = MappingProxyType(
    {
        "blocking": lambda seed, count: blocking.produce(seed, count, is_transactional=False),
        "blocking-transactions": lambda seed, count: blocking.produce(
            seed, count, is_transactional=True
        ),
        "blocking-consumer": blocking.consume,
        "asyncio": lambda seed, count: asyncio.run(
            cancelled.produce(seed, count, is_transactional=False)
        ),
        "asyncio-transactions": lambda seed, count: asyncio.run(
            cancelled.produce(seed, count, is_transactional=True)
        ),
    }
)


def main() -> int:
    """The command line; 1 when a promise was broken."""
    parser = soak_parser("make soak-faces", __doc__)
    parser.add_argument("--records", type=int, default=1_000_000, help="of each kind (RECORDS=n)")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=[*KINDS])
    options = parser.parse_args()
    # Callbacks that raise are reported in the log: thousands of times here.
    logging.getLogger("moldau").setLevel(logging.CRITICAL + 1)
    first = seed_of(options)
    failed = False
    for kind in options.kinds:
        total: Counter[str] = Counter()
        longest: dict[str, float] = {}
        seed = first
        while total["records"] < options.records and not failed:
            faulthandler.dump_traceback_later(HANG_S, exit=True)
            account = KINDS[kind](seed, ROUND_RECORDS)
            faulthandler.cancel_dump_traceback_later()
            total += account.counts
            for what, spent in account.longest_s.items():
                longest[what] = max(longest.get(what, 0.0), spent)
            for problem in account.problems:
                print(f"{kind}, seed {seed}: {problem}", flush=True)
            failed = bool(account.problems)
            seed += 1
        counts = ", ".join(f"{count:,} {what}" for what, count in sorted(total.items()))
        calls = ", ".join(f"{what} {spent:.1f}" for what, spent in sorted(longest.items()))
        print(f"{kind}, seeds {first} to {seed - 1}: {counts}; longest calls in s: {calls}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
