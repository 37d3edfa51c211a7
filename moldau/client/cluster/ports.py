"""The ways out of a client, for those who bring their own: simulations and tests."""

from __future__ import annotations

import random
from dataclasses import dataclass

from moldau.runtime.clock import Clock
from moldau.runtime.network import Network


@dataclass(frozen=True, slots=True)
class ClientPorts:
    """Sockets, time and dice; the real ones where None."""

    network: Network | None = None
    clock: Clock | None = None
    source: random.Random | None = None
