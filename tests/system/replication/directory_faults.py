"""What a failing disk and an operator do to a log directory of one broker of a ChaosCluster.

Owns those faults, and what the broker must do while a directory is away: serve from the others, say
which one has failed, and lead or follow in sync nowhere in it. Must not: choose whom they hit and
when (that is the nemesis). Invariant: when what `make` returns has run, every directory is in its
place and in `log.dirs`, and the broker is started.
"""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p35_describe_log_dirs import DescribeLogDirsRequest
from tests.kit.waiting import until
from tests.system.replication.chaos_cluster import ANSWER_S, ChaosCluster
from tests.system.replication.two_directories import format_directories, set_directories

DESCRIBE_VERSION: Final = 1
#: In this time everything is in sync again after a fault, on a busy machine too.
SETTLE_DEADLINE_S: Final = 120.0
#: How often a broker gets the time to come in sync without its directory.
PATIENT_SHARE: Final = 0.6
#: How a node ends whose directory with the metadata log has failed.
FAILED_STATUS: Final = 1
PARTITION: Final = re.compile(r"(?!__cluster_metadata-)[a-zA-Z0-9._-]+-\d+")


class DirectoryFaults:
    """Belongs to one nemesis, and is called in its lane of brokers alone.

    Args:
        missing: what is missing until all replicas are in sync, but for those of the partitions
            that it is given.
        end: ends a broker: its id, and whether by SIGTERM.
        say: gets a line per event.
        complain: gets a line for each thing that a broker should have done and did not.
    """

    def __init__(
        self,
        cluster: ChaosCluster,
        *,
        missing: Callable[[Collection[str]], list[str]],
        end: Callable[[int, bool], None],
        say: Callable[[str], None],
        complain: Callable[[str], None],
    ) -> None:
        self._cluster = cluster
        self._missing = missing
        self._end = end
        self._say = say
        self._complain = complain

    def make(self, fault: str, victim: int, dice: random.Random) -> Callable[[], None]:
        """Break a directory of the broker; returns what mends it."""
        faults = {
            "directory-pulled": self._pull,
            "directory-missing": self._start_without_its_disk,
            "directory-removed": self._take_out,
            "directory-replaced": self._replace,
        }
        return faults[fault](victim, dice)

    # -- faults ----------------------------------------------------------------------------------

    def _pull(self, victim: int, dice: random.Random) -> Callable[[], None]:
        """The disk goes away under the running broker; that one, or an empty one, comes back."""
        cluster = self._cluster
        directory = dice.choice(cluster.data_directories(victim))
        is_same, is_back_early, is_clean = (dice.random() < 0.5 for _ in range(3))
        self._wait(victim, "serves from all directories", lambda: self._failed(victim) == [])
        self._wait_placed(victim)
        told = f"log directory {directory} is offline"
        told_count = self._log(victim).count(told)
        away = self._move_away(victim, directory)
        partitions = partitions_in(away)
        if directory == cluster.data_directories(victim)[0]:
            self._wait_ended(victim)
        else:
            # Not asked for at once: to describe a directory is to find out that it has failed.
            self._wait(victim, "logs it", lambda: self._log(victim).count(told) > told_count)
            failed = [str(directory)]
            self._wait(victim, "says so", lambda: self._failed(victim) == failed)
            self._wait(victim, "leaves the ISRs", lambda: not self._in_isr(victim, partitions))
            self._wait_in_sync(victim, without=partitions)

        def mend() -> None:
            if is_same and is_back_early:
                away.rename(directory)  # not used again before the next start
            if cluster.is_running(victim):
                self._stop(victim, is_clean)
            if not is_same:
                shutil.rmtree(away)
                format_directories(cluster.config_path(victim))
                self._say(f"broker {victim} gets an empty {directory.name}")
            elif not is_back_early:
                away.rename(directory)
            cluster.launch(victim)

        return mend

    def _start_without_its_disk(self, victim: int, dice: random.Random) -> Callable[[], None]:
        """A directory of `log.dirs` is not mounted at a start; it is at the next one."""
        directory = self._other_than_first(victim, dice)
        is_clean, is_clean_again, is_patient = self._draw(dice)
        if is_patient:
            self._wait_placed(victim)
        self._stop(victim, is_clean)
        away = self._move_away(victim, directory)
        partitions = partitions_in(away)
        self._cluster.launch(victim)
        if is_patient:
            self._wait_in_sync(victim, without=partitions)
            failed = [str(directory)]
            self._wait(victim, "says what is missing", lambda: self._failed(victim) == failed)
            self._wait(victim, "is in no ISR there", lambda: not self._in_isr(victim, partitions))

        def mend() -> None:
            self._stop(victim, is_clean_again)
            away.rename(directory)
            self._cluster.launch(victim)

        return mend

    def _take_out(self, victim: int, dice: random.Random) -> Callable[[], None]:
        """A directory leaves `log.dirs` over a stop, so that its replicas are copied into others,
        and is put back with its old contents: second copies of what was copied.
        """
        directory = self._other_than_first(victim, dice)
        is_clean, is_clean_again, is_patient = self._draw(dice)
        config = self._cluster.config_path(victim)
        every = self._cluster.data_directories(victim)
        self._stop(victim, is_clean)
        self._say(f"broker {victim} starts without {directory.name}")
        set_directories(config, *(each for each in every if each != directory))
        self._cluster.launch(victim)
        if is_patient:
            self._wait_in_sync(victim)

        def mend() -> None:
            self._stop(victim, is_clean_again)
            places = [each for other in every for each in partitions_in(other)]
            count = len(places) - len(set(places))
            self._say(f"broker {victim} has {directory.name} again, with {count} second copies")
            set_directories(config, *every)
            self._cluster.launch(victim)

        return mend

    def _replace(self, victim: int, dice: random.Random) -> Callable[[], None]:
        """A directory comes back empty, formatted again."""
        directory = dice.choice(self._cluster.data_directories(victim))
        self._stop(victim, dice.random() < 0.5)
        self._say(f"broker {victim} gets an empty {directory.name}")
        shutil.rmtree(directory)
        format_directories(self._cluster.config_path(victim))
        return lambda: self._cluster.launch(victim)

    # -- means -----------------------------------------------------------------------------------

    def _other_than_first(self, victim: int, dice: random.Random) -> Path:
        """A directory without the metadata log: without that one a broker does not start."""
        return dice.choice(self._cluster.data_directories(victim)[1:])

    @staticmethod
    def _draw(dice: random.Random) -> tuple[bool, bool, bool]:
        """Whether the first and the second stop are clean, and whether there is time between."""
        return dice.random() < 0.5, dice.random() < 0.5, dice.random() < PATIENT_SHARE

    def _stop(self, victim: int, is_clean: bool) -> None:
        """Ends the broker, and removes what it has put aside: the disks are small."""
        self._end(victim, is_clean)
        for directory in self._cluster.data_directories(victim):
            for stray in directory.glob("*-stray"):
                shutil.rmtree(stray)

    def _log(self, victim: int) -> str:
        return (self._cluster.home(victim) / "node.log").read_text(errors="replace")

    def _move_away(self, victim: int, directory: Path) -> Path:
        self._say(f"broker {victim} loses {directory.name}")
        return directory.rename(directory.with_name(f"{directory.name}-away"))

    def _failed(self, victim: int) -> list[str] | None:
        """The directories of which the broker says that they have failed; None: no answer."""
        try:
            with self._cluster.wire(victim) as wire:
                wire.socket.settimeout(ANSWER_S)
                described = wire.ask(DescribeLogDirsRequest(topics=[]), DESCRIBE_VERSION)
        except OSError:
            return None
        return [
            each.log_dir
            for each in described.results
            if each.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        ]

    def _in_isr(self, victim: int, partitions: Collection[str]) -> list[str]:
        """Which of these partitions, that the broker has nowhere, have it in their ISR all the
        same; or that no other broker answers.
        """
        asked = next(each for each in self._cluster.broker_ids if each != victim)
        found = []
        for topic in {each.rpartition("-")[0] for each in partitions}:
            try:
                views = self._cluster.partitions(asked, topic)
            except OSError as error:
                return [str(error)]
            for number, view in views.items():
                name = f"{topic}-{number}"
                is_gone = not self._cluster.replica_directories(victim, name)
                if name in partitions and is_gone and victim in view.isr:
                    found.append(name)
        return found

    def _wait_placed(self, victim: int) -> None:
        """A replica whose directory was replaced, and that has no log again yet, may lie in the
        directory that goes away next, for all that the broker knows: as in Apache Kafka, it is not
        begun again before that one is back.
        """
        self._wait_in_sync(victim, what="in sync before it loses a directory")

    def _wait_in_sync(
        self,
        victim: int,
        without: Collection[str] = (),
        what: str = "in sync without its directory",
    ) -> None:
        missing: list[str] = []

        def is_in_sync() -> bool:
            missing[:] = self._missing(without)
            return not missing

        self._wait(victim, what, is_in_sync, missing)

    def _wait_ended(self, victim: int) -> None:
        """A node without its metadata log's directory ends."""
        self._wait(victim, "ends", lambda: not self._cluster.is_running(victim))
        status = self._cluster.exit_status(victim)
        if status not in (None, FAILED_STATUS):
            self._complain(f"broker {victim} ended with status {status}")

    def _wait(
        self,
        victim: int,
        what: str,
        condition: Callable[[], bool],
        missing: Collection[str] = (),
    ) -> None:
        """Return when it is so, or the broker has ended by itself, which the nemesis finds."""
        try:
            until(
                lambda: not self._cluster.is_running(victim) or condition(),
                what=f"broker {victim} {what}",
                deadline_s=SETTLE_DEADLINE_S,
            )
        except TimeoutError as error:
            self._complain("; ".join([str(error), *missing]))


def partitions_in(directory: Path) -> frozenset[str]:
    """Those that the log directory has, as `topic-number`."""
    names = [each.name for each in directory.iterdir() if each.is_dir()]
    return frozenset(each for each in names if PARTITION.fullmatch(each))
