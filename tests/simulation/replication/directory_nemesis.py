"""What log directories of brokers suffer: they fail, are taken out, exchanged and put back, and
files beside their logs go wrong at each death (`files_beside`).

Owns: which directory is out, and what an operator does about it, from stop to stop. Must not: look
at what was promised. Invariants: one directory of the cluster is out at a time; where a topic has
only one replica no disk is exchanged, since no other replica could make up for it.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import partial

from tests.simulation.cluster.base_nemesis import Act, BaseNemesis
from tests.simulation.cluster.disk import Refusal
from tests.simulation.cluster.files_beside import FilesBesideLogs
from tests.simulation.replication.data_broker import DataBroker
from tests.simulation.replication.world import ReplicationWorld

CLEAN_STOPS = 0.7
Change = Callable[[], None]


class DirectoryNemesis(BaseNemesis):
    """See the module; a subclass calls `change_directories` after each death of a broker."""

    world: ReplicationWorld

    _broker_out: DataBroker | None = None
    _path_out: str = ""
    _changes: list[Change]
    _files_beside: FilesBesideLogs

    def directory_acts(self) -> list[Act]:
        """What belongs into `acts`."""
        self._changes = []
        self._files_beside = FilesBesideLogs(self.world, of_metadata=False)
        return [
            (2, self._fail_directory),
            (1, self._fail_scan),
            (2, self._remove_directory),
            (1, self._remove_directory_in_the_dark),
            (1, self._exchange_directory),
        ]

    def named_acts(self) -> list[Act]:
        return [(2, self._flip_header_bit)]

    # -- the beginning ---------------------------------------------------------------------------

    def _flip_header_bit(self) -> None:
        """While no process runs, a bit that no CRC covers changes in a closed segment."""
        brokers = [each for each in self.world.brokers if each.is_ready]
        if self._broker_out is None and brokers and self.world.may_wipe:
            broker = self._broker_out = self.random.choice(brokers)
            self._path_out = ""
            self.world.expected_disk_faults = True
            self._restart(broker, partial(self._flip, broker))

    def _flip(self, broker: DataBroker) -> None:
        self._broker_out = None
        flipped = broker.directories.flip_header_bit(self.random)
        if flipped is not None:
            self.world.fault_injected("header bit flipped", f"{broker.host} {flipped}")

    def _take_out(self, what: str) -> DataBroker | None:
        """Choose a directory to be out next, if none is."""
        brokers = [each for each in self.world.brokers if each.is_ready and each.directories.spare]
        if self._broker_out is not None or not brokers:
            return None
        broker = self._broker_out = self.random.choice(brokers)
        self._path_out = self.random.choice(broker.directories.spare)
        if self.random.random() < 0.8:
            # One that nothing lies in is not missed.
            self._path_out = max(broker.directories.spare, key=broker.directories.log_count)
        self.world.expected_disk_faults = True
        self.world.fault_injected(what, f"{broker.host} {self._path_out}")
        return broker

    def _fail_directory(self) -> None:
        """Nothing of it answers any more; the process goes on with the others, or ends."""
        self.break_spare("directory fails", errno.EIO)

    def break_spare(self, what: str, error_number: int) -> Refusal | None:
        """Let it fail; it stays out until the operator, who looks at it at the end at the latest,
        has put it back.
        """
        broker = self._take_out(what)
        if broker is None:
            return None
        broker.directories.fail(self._path_out, error_number)
        if self.random.random() < 0.6:
            self._later(self.random.uniform(200, 4_000), self._look_after, broker)
        return broker.directories.refusals[self._path_out]

    def _look_after(self, broker: DataBroker) -> None:
        """The operator sees it: is the disk taken out first, or exchanged at once?"""
        if self.is_over or self._broker_out is not broker:
            return
        if self.random.random() < 0.5:
            self._restart(broker, partial(broker.directories.unplug, self._path_out))
            self._later(self.random.uniform(500, 5_000), self._put_back, broker)
        else:
            self._put_back(broker)

    def _remove_directory(self) -> None:
        broker = self._take_out("directory removed")
        if broker is not None:
            self._restart(broker, partial(broker.directories.unplug, self._path_out))
            self._later(self.random.uniform(500, 6_000), self._put_back, broker)

    def _remove_directory_in_the_dark(self) -> None:
        """The other brokers go one after the other, and this one is back first, without it; it
        copies from none that is left.
        """
        broker = self._take_out("directory removed in the dark")
        if broker is None:
            return
        draw = self.random.uniform
        unplug = partial(broker.directories.unplug, self._path_out)
        others = [each for each in self.world.brokers if each is not broker]
        self._later(draw(200, 1_500), self._restart, broker, unplug)
        for other in self.random.sample(others, self.random.randint(len(others) - 1, len(others))):
            self._later(draw(0, 2_500), self._end, other)
        there = [(broker.host, each.host) for each in others]
        self._later(draw(200, 1_500), self._cut, there + [(b, a) for a, b in there])
        self._later(draw(3_000, 8_000), self._put_back, broker)

    def _end(self, broker: DataBroker) -> None:
        if not self.is_over and broker.is_alive:
            if self.random.random() < CLEAN_STOPS:
                broker.leave()
            else:
                broker.kill()

    def _fail_scan(self) -> None:
        """It fails while it is read at a start, and is back after the next one."""
        broker = self._take_out("directory fails at the start")
        if broker is not None:
            operation = self.random.choice(("listdir", "read"))
            path = self._path_out
            self._restart(broker, lambda: broker.directories.fail_while_scanned(path, operation))
            self._later(self.random.uniform(500, 6_000), self._put_back, broker)

    def _exchange_directory(self) -> None:
        """An empty disk is mounted after a restart, in place of the one that was."""
        if self.world.may_wipe:
            broker = self._take_out("directory exchanged")
            if broker is not None:
                path, same_id = self._path_out, self.random.random() < 0.5

                def exchange() -> None:
                    broker.directories.unplug(path)
                    self._bring(broker, path, is_empty=True, same_id=same_id)

                self._restart(broker, exchange)

    # -- the way back ----------------------------------------------------------------------------

    def _put_back(self, broker: DataBroker) -> None:
        """With what was in it, or empty; under its old id, or a new one."""
        if self.is_over or self._broker_out is not broker:
            return
        is_empty = self.world.may_wipe and self.random.random() < 0.4
        same_id = self.random.random() < 0.3
        self._restart(
            broker,
            partial(self._bring, broker, self._path_out, is_empty=is_empty, same_id=same_id),
        )

    def _bring(self, broker: DataBroker, path: str, *, is_empty: bool, same_id: bool) -> None:
        self.world.note(f"{broker.host} has {path} again, empty: {is_empty}, same id: {same_id}")
        if is_empty:
            broker.directories.bring_empty(path, same_id=same_id)
        else:
            broker.directories.bring_back(path)
        self._broker_out = None

    def _restart(self, broker: DataBroker, change: Change) -> None:
        """Change something while no process runs."""
        if not broker.is_alive:
            change()
            return
        self._changes.append(change)
        if self.random.random() < CLEAN_STOPS and broker.is_ready:
            broker.leave()
            self._later(12_000.0, self._kill_if_still_there, broker, broker.starts)
        else:
            broker.kill()

    def _kill_if_still_there(self, broker: DataBroker, starts: int) -> None:
        if broker.is_alive and broker.starts == starts:
            broker.kill()

    def change_directories(self, broker: DataBroker) -> None:
        """A broker has died, and has been buried."""
        directories = broker.directories
        self._files_beside.disturb(broker.host, broker.root, directories.configured)
        if self._broker_out is broker:
            changes, self._changes = self._changes, []
            for change in changes:
                change()

    # -- the end ---------------------------------------------------------------------------------

    def repair_directories(self) -> None:
        """What is out is put back before the brokers are started for good, or after the cluster
        has recovered without it.
        """
        for each in self.world.brokers:
            each.directories.undo_flips()
        broker = self._broker_out
        if broker is None:
            return
        if not self._path_out:
            self._changes.clear()
            self._broker_out = None
            return
        if self._path_out in broker.directories.dead and self.random.random() < 0.7:
            self.world.late_repair = partial(self._put_back_at_last, broker)
        else:
            self._put_back_at_last(broker)

    def _put_back_at_last(self, broker: DataBroker) -> None:
        path = self._path_out
        self._changes.append(partial(self._bring, broker, path, is_empty=False, same_id=True))
        if broker.is_alive:
            broker.kill()
        else:
            self.change_directories(broker)
