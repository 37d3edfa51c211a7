"""Schedules that once broke the producer's core, cut down to what matters, and some random walks.

The schedules were found by walks like these, but by one in hundreds: a change of the numbering
deserves thousands of them (the range in `test_walks`; three thousand take a minute).
"""

from __future__ import annotations

import random

import pytest

from moldau.protocol.errors import ErrorCode
from tests.unit.client.producer.core.test_state_machine import FAULTS_AFTER, FAULTS_BEFORE
from tests.unit.client.producer.core.world import NODES, PARTITIONS, World


def test_a_batch_that_is_written_and_then_too_large_is_not_split() -> None:
    """Its parts would have other numbers than the batch in the log, and be written again."""
    world = World("idempotent")
    for size_bytes in (73, 73, 73, 73, 61, 61):
        world.append(1, size_bytes)
    world.drain()
    world.serve(1, None)
    world.answer(1)
    for _ in range(3):
        world.pass_time(6.0)
        world.drain()
    world.serve_all()
    world.drain()
    world.cut(1, 2)
    world.pass_time(60.0)
    world.drain()
    world.serve(1, ErrorCode.MESSAGE_TOO_LARGE)
    world.check()
    world.finish()
    assert world.logs[1].numbers() == sorted(set(world.logs[1].numbers()))


def test_no_batch_is_so_far_behind_another_that_the_log_forgets_that_one() -> None:
    """The oldest of five is written but not acknowledged, the others are; a sixth must wait."""
    world = World("idempotent")
    world.move_leader(0, 1, told=True)
    for _ in range(2):
        world.append(0, 120)
    world.drain()
    world.serve_all()
    for _ in range(4):
        world.append(0, 113)
    for _ in range(4):
        world.drain()
    world.serve(1, ErrorCode.REQUEST_TIMED_OUT, after_append=True)
    world.serve_all()
    world.move_leader(1, 0, told=True)
    world.append(0, 54)
    world.pass_time(6.0)
    for _ in range(3):
        world.drain()
    world.serve(1, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    world.check()
    world.finish()
    assert world.logs[0].numbers() == sorted(set(world.logs[0].numbers()))


@pytest.mark.parametrize("mode", ["plain", "idempotent", "transactional"])
def test_walks(mode: str) -> None:
    """Weighted towards what goes deep: batches in flight, then a fault."""
    for seed in range(40):
        try:
            walk(World(mode), random.Random(seed))
        except AssertionError as error:
            raise AssertionError(f"{mode}, seed {seed}: {error}") from error


def walk(world: World, dice: random.Random) -> None:
    """Sixty steps and the end."""
    for _ in range(60):
        step(world, dice, dice.random())
        world.check()
    world.finish()


def step(world: World, dice: random.Random, chance: float) -> None:
    """One of the things that happen."""
    node = dice.randrange(NODES)
    if chance < 0.35:
        go_on(world, dice)
    elif chance < 0.76:
        fail(world, dice, chance, node)
    elif chance < 0.84:
        world.move_leader(dice.randrange(PARTITIONS), node, told=dice.random() < 0.5)
    elif chance < 0.88:
        world.learn_leaders()
    elif chance < 0.91:
        world.pass_time(dice.choice([20.0, 100.0, 400.0]))
    elif chance < 0.93:
        world.give_up_waiting()
    elif chance < 0.96:
        world.bump()
    else:
        world.set_identity(is_open=dice.random() < 0.8, grants_at_once=dice.random() < 0.6)


def go_on(world: World, dice: random.Random) -> None:
    """Some records, some requests, some answers."""
    fill(world, dice, drains=dice.randrange(4))
    for node in range(NODES):
        for _ in range(dice.randrange(5)):
            world.serve(node, None)
        for _ in range(dice.randrange(5)):
            world.answer(node)


def fail(world: World, dice: random.Random, chance: float, node: int) -> None:
    """Something breaks while batches are in flight."""
    if dice.random() < 0.6:
        world.learn_leaders()
        world.serve_all()
    fill(world, dice, drains=3)
    if chance < 0.55:
        fault = dice.choice(FAULTS_BEFORE + FAULTS_AFTER)
        world.serve(node, fault, after_append=fault not in FAULTS_BEFORE)
        if dice.random() < 0.5:
            world.answer(node)
    elif chance < 0.7:
        world.cut(node, dice.randrange(4))
    else:
        world.pass_time(1_000.0)
        world.drain()


def fill(world: World, dice: random.Random, *, drains: int) -> None:
    """Records come, and some requests go out."""
    size_bytes = dice.randint(1, 120)
    for partition in range(PARTITIONS):
        for _ in range(dice.randrange(9)):
            world.append(partition, size_bytes)
    world.pass_time(6.0)
    for _ in range(drains):
        world.drain()
