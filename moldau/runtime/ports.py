"""The ports of one client or node: everything it reaches the outside with, in one value."""

from __future__ import annotations

import random
from typing import NamedTuple

from moldau.runtime.clock import Clock, SystemClock
from moldau.runtime.network import AsyncioNetwork, Network


class Ports(NamedTuple):
    """Clock, network and randomness of a client. Production takes the machine's own; a simulation
    brings simulated ones, and then everything the client does follows from its seed.
    """

    clock: Clock
    network: Network
    random: random.Random

    @classmethod
    def of_machine(cls) -> Ports:
        """The machine's clocks, real sockets on the running loop, a generator with its own seed."""
        return cls(SystemClock(), AsyncioNetwork(), random.Random())
