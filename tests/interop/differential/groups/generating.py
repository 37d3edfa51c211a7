"""Random sequences: what clients do, mostly in a sensible order, and where they do not.

Owns: which kind of request comes next. Invariant: a seed and a number are one sequence, whatever
any cluster answers.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Final

from tests.interop.differential.groups import classic_steps, consumer_steps, offset_steps
from tests.interop.differential.groups.drawing import ACTORS, Cast, chosen
from tests.interop.differential.groups.sequences import Sequence, Step

LONGEST: Final = 14
"""Requests of a sequence, without its last look at the group."""

NEW, JOINED, MEMBER = "new", "joined", "member"
CLASSIC, CONSUMER = "classic", "consumer"


def sequence(seed: int, number: int) -> Sequence:
    """The sequence of that number."""
    return _Play(Random(f"{seed}/{number}"), f"seed {seed}, number {number}").sequence()


class _Play:
    """One sequence in the making."""

    def __init__(self, dice: Random, name: str) -> None:
        self._dice = dice
        self._name = name
        self._steps: list[Step] = []
        self._actors = range(chosen(dice, (30, 1), (45, 2), (20, 3), (5, ACTORS)))
        self._cast = Cast(
            protocol_type=chosen(dice, (96, "consumer"), (4, "connect")),
            pattern=chosen(dice, (50, "al.*"), (25, "al.*|beta"), (10, "none.*"), (15, "be.a")),
            is_uniform=dice.random() < 0.05,
            is_owning=dice.random() < 0.1,
            is_alone=len(self._actors) == 1,
        )
        for actor in self._actors:
            if dice.random() < 0.25:
                self._cast.instances[actor] = f"i{chosen(dice, (90, actor), (10, 0))}"
        kind = chosen(dice, (30, "classic"), (25, "consumer"), (37, "mixed"), (8, "simple"))
        self._is_mixed = kind == "mixed"
        self._is_simple = kind == "simple"
        self._protocols = {
            actor: dice.choice((CLASSIC, CONSUMER)) if self._is_mixed else kind
            for actor in self._actors
        }
        self._stages = dict.fromkeys(self._actors, NEW)

    def sequence(self) -> Sequence:
        """The whole of it."""
        count = self._dice.randint(3, LONGEST)
        while len(self._steps) < count:
            self._next(self._dice.choice(self._actors))
        steps = (*self._steps[:LONGEST], *offset_steps.last_look(self._cast))
        for word, is_so in (("uniform", self._cast.is_uniform), ("owning", self._cast.is_owning)):
            if is_so:
                steps = tuple(replace(each, label=f"{word}, {each.label}") for each in steps)
        return Sequence(self._name, steps)

    def _next(self, actor: int) -> None:
        dice, cast = self._dice, self._cast
        if self._is_simple or dice.random() < 0.16:
            self._steps.append(self._aside(actor))
            return
        if self._is_mixed and dice.random() < 0.12:
            other = {CLASSIC: CONSUMER, CONSUMER: CLASSIC}[self._protocols[actor]]
            self._protocols[actor] = other
            if dice.random() < 0.5:
                self._stages[actor] = NEW
        if self._protocols[actor] == CLASSIC:
            self._classic(actor)
        else:
            self._consumer(dice, cast, actor)

    def _classic(self, actor: int) -> None:
        dice, cast = self._dice, self._cast
        stage = self._stages[actor]
        kind = chosen(
            dice,
            *{
                NEW: ((90, "join"), (4, "sync"), (3, "heartbeat"), (3, "leave")),
                JOINED: ((75, "sync"), (10, "join"), (10, "heartbeat"), (5, "leave")),
                MEMBER: ((35, "join"), (35, "heartbeat"), (15, "sync"), (15, "leave")),
            }[stage],
        )
        if kind == "join":
            step = classic_steps.join(dice, cast, actor)
            self._steps.append(step)
            if stage == NEW and step.api_version >= 4 and dice.random() < 0.85:
                self._steps.append(step)  # The first one was only given an id.
            self._stages[actor] = JOINED
        elif kind == "sync":
            self._steps.append(classic_steps.sync(dice, cast, actor))
            self._stages[actor] = MEMBER
        elif kind == "heartbeat":
            self._steps.append(classic_steps.heartbeat(dice, cast, actor))
        else:
            self._steps.append(classic_steps.leave(dice, cast, actor))
            self._stages[actor] = NEW

    def _consumer(self, dice: Random, cast: Cast, actor: int) -> None:
        if self._stages[actor] == NEW and dice.random() < 0.92:
            self._steps.append(consumer_steps.join(dice, cast, actor))
            self._stages[actor] = MEMBER
            return
        kind = chosen(dice, (72, "heartbeat"), (15, "leave"), (13, "join"))
        draw = {
            "heartbeat": consumer_steps.heartbeat,
            "leave": consumer_steps.leave,
            "join": consumer_steps.join,
        }[kind]
        self._steps.append(draw(dice, cast, actor))
        if kind == "leave":
            self._stages[actor] = NEW

    def _aside(self, actor: int) -> Step:
        draw = chosen(
            self._dice,
            (40, offset_steps.commit),
            (22, offset_steps.fetch),
            (10, offset_steps.delete_offsets),
            (8, offset_steps.delete_group),
            (10, offset_steps.describe_classic),
            (10, offset_steps.describe_consumer),
        )
        step: Step = draw(self._dice, self._cast, actor)
        return step
