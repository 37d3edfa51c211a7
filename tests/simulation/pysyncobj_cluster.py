"""pysyncobj 0.3.17 under the same scheduler, network faults and ledger as our own quorum.

Owns: a journal that never loses anything, a transport that keeps order, and what it takes to run
the library on a virtual clock. Must not: help the library with anything else, or harm it with
faults a user would not meet: only resets, cut links and kills. Invariant: what the ledger
reports is the library's own doing, because disk and transport are perfect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from pysyncobj import FAIL_REASON, SyncObj, SyncObjConf, replicated, syncobj
from pysyncobj.journal import Journal
from pysyncobj.node import Node
from pysyncobj.transport import Transport

from tests.kit.seeds import Violation
from tests.simulation.ledger import Entry, Ledger
from tests.simulation.nemesis import Nemesis, NetworkFaults
from tests.simulation.network import Network, Stream
from tests.simulation.scheduler import Scheduler

NODE_IDS = (1, 2, 3)
TICK_MS = 30.0
APPENDS_PER_SECOND = 30.0
RUN_MS = 20_000.0
BATCH_BYTES = 150
"""Small batches make followers lag by several messages, as any busy cluster does."""
RECONNECT_DELAYS_MS = (5.0, 100.0, 600.0)
RESTART_DELAYS_MS = (50.0, 500.0, 2_000.0)
FIRST_INDEX = 1


class PerfectJournal(Journal):  # type: ignore[misc]
    """Entries, term, vote and commit index, all durable at once."""

    def __init__(self) -> None:
        self.entries: list[tuple[bytes, int, int]] = []
        self.removed: list[tuple[bytes, int, int]] = []
        self.term, self.vote, self.commit_index = 0, None, FIRST_INDEX
        self.on_add: Callable[[int, Entry, int], None] = lambda *_: None

    def add(self, command: bytes, idx: int, term: int) -> None:
        previous = self.entries[-1][2] if self.entries else 0
        self.on_add(idx, (term, bytes(command)), previous)
        self.entries.append((command, idx, term))

    def clear(self) -> None:
        self.deleteEntriesFrom(0)

    def deleteEntriesFrom(self, entryFrom: int) -> None:
        self.removed += self.entries[entryFrom:]
        del self.entries[entryFrom:]

    def deleteEntriesTo(self, entryTo: int) -> None:
        del self.entries[:entryTo]

    def __getitem__(self, item: Any) -> Any:
        return self.entries[item]

    def __len__(self) -> int:
        return len(self.entries)

    def _destroy(self) -> None:
        pass

    def setRaftCommitIndex(self, raftCommitIndex: int) -> None:
        self.commit_index = raftCommitIndex

    def getRaftCommitIndex(self) -> int:
        return self.commit_index

    def setCurrentTerm(self, term: int, votedForNodeId: Any) -> None:
        self.term, self.vote = term, votedForNodeId

    def getCurrentTerm(self) -> int:
        return self.term

    def getVotedForNodeId(self) -> Any:
        return self.vote

    # LogReader

    def start(self) -> int:
        return self.entries[0][1]

    def end(self) -> int:
        return self.entries[-1][1] + 1

    def entry_at(self, offset: int) -> Entry | None:
        position = offset - self.start()
        if not 0 <= position < len(self.entries):
            return None
        command, _, term = self.entries[position]
        return term, bytes(command)


class OrderedTransport(Transport):  # type: ignore[misc]
    """Messages over connections that keep order; the cluster reports connects and resets."""

    def __init__(self, process: Process) -> None:
        super().__init__(None, None, [])
        self._process = process

    def send(self, node: Node, message: dict[str, Any]) -> bool:
        return self._process.cluster.transmit(self._process, node.id, message)

    def addNode(self, node: Node) -> None:
        pass

    def dropNode(self, node: Node) -> None:
        pass

    def destroy(self) -> None:
        pass


class _NoPoller:
    """There are no sockets to poll."""

    def poll(self, timeout: float) -> None:
        pass


class Machine(SyncObj):  # type: ignore[misc]
    """The replicated state: nothing but the numbers put."""

    @replicated  # type: ignore[untyped-decorator]
    def put(self, number: int) -> int:
        return number


class Process:
    """One run of a node; its journal outlives it."""

    def __init__(self, cluster: PySyncObjCluster, node_id: int, incarnation: int) -> None:
        self.cluster = cluster
        self.node_id = node_id
        self.who = (node_id, incarnation)
        self.alive = True
        self.journal = cluster.journals[node_id]
        self.journal.on_add = self._added
        self.seen_commit = FIRST_INDEX
        self.transport = OrderedTransport(self)
        conf = SyncObjConf(
            autoTick=False,
            journalFile="perfect",
            fullDumpFile=None,
            raftMinTimeout=0.4,
            raftMaxTimeout=1.4,
            appendEntriesPeriod=0.1,
            leaderFallbackTimeout=3.0,
            appendEntriesBatchSizeBytes=BATCH_BYTES,
            logCompactionMinEntries=10**9,
            logCompactionMinTime=10**9,
        )
        others = [Node(each) for each in NODE_IDS if each != node_id]
        with mock.patch.object(syncobj, "createJournal", return_value=self.journal):
            self.machine = Machine(Node(node_id), others, conf, transport=self.transport)

    def state(self, name: str) -> Any:
        """A private member of the library's core."""
        return getattr(self.machine, f"_SyncObj__{name}")

    @property
    def leads(self) -> bool:
        """Whether it believes to lead."""
        return bool(self.machine._isLeader())

    def _added(self, index: int, entry: Entry, previous_term: int) -> None:
        if index > FIRST_INDEX:
            self.cluster.ledger.append(self.who, index, entry, previous_term)


class PySyncObjCluster:
    """One seed."""

    def __init__(self, seed: int) -> None:
        self.scheduler = Scheduler(f"pysyncobj-{seed}")
        self.random = self.scheduler.random
        self.ledger = Ledger(FIRST_INDEX)
        self.network = Network(self.scheduler)
        self.journals = {node_id: PerfectJournal() for node_id in NODE_IDS}
        self.processes: dict[int, Process] = {}
        self._incarnation = 0
        self._number = 0
        self._connected: dict[tuple[int, int], bool] = {}
        self._streams = {
            (one, other): Stream(self.network, one, other)
            for one in NODE_IDS
            for other in NODE_IDS
            if one != other
        }
        self.network.reset_listeners.append(self._disconnected)
        faults = NetworkFaults(self.network, list(NODE_IDS), self.leader_id)
        self.nemesis = Nemesis(self.scheduler, {**faults.actions(), "kill": self._kill})

    def leader_id(self) -> int | None:
        """Who leads in the highest term."""
        leaders = [each for each in self.processes.values() if each.leads]
        best = max(leaders, key=lambda each: each.state("raftCurrentTerm"), default=None)
        return best.node_id if best is not None else None

    # Processes

    def _start(self, node_id: int) -> None:
        self._incarnation += 1
        process = Process(self, node_id, self._incarnation)
        self.processes[node_id] = process
        self._tick(process)
        for other in NODE_IDS:
            if other != node_id:
                self.scheduler.after(10.0, self._connect, node_id, other)

    def _kill(self) -> bool:
        node_id = self.random.choice(NODE_IDS)
        process = self.processes.pop(node_id, None)
        if process is None:
            return False
        self.scheduler.fault("kill", str(node_id))
        process.alive = False
        for other in NODE_IDS:
            if other != node_id:
                self.network.reset(node_id, other)
        self.scheduler.after(self.random.choice(RESTART_DELAYS_MS), self._start, node_id)
        return True

    def _tick(self, process: Process) -> None:
        if process.alive:
            self._step(process, "tick", process.machine.doTick)
            self.scheduler.after(TICK_MS * (0.7 + 0.6 * self.random.random()), self._tick, process)

    def _step(self, process: Process, kind: str, action: Callable[[], Any]) -> None:
        action()
        journal = process.journal
        self.scheduler.event(f"{process.node_id} {kind} end={journal.end()}")
        removed, journal.removed = journal.removed, []
        for command, index, term in removed:
            entry = (term, bytes(command))
            if journal.entry_at(index) != entry:
                self.ledger.erase(process.who, index, entry)
        if process.leads:
            self.ledger.leads(process.who, process.state("raftCurrentTerm"), journal)
        commit_index = process.state("raftCommitIndex")
        for index in range(process.seen_commit, commit_index + 1):
            committed = journal.entry_at(index)
            if committed is None:
                raise Violation("commit-gap", f"{process.who} commits {index}, has none")
            self.ledger.commit(process.who, index, committed)
        process.seen_commit = max(process.seen_commit, commit_index)

    # Connections

    def _connect(self, one: int, other: int) -> None:
        pair = (min(one, other), max(one, other))
        if self._connected.get(pair) or one not in self.processes or other not in self.processes:
            return
        until_ms = max(
            self.network.blocked_until_ms(one, other), self.network.blocked_until_ms(other, one)
        )
        if until_ms > self.scheduler.now_ms:
            self.scheduler.after(until_ms - self.scheduler.now_ms + 10, self._connect, one, other)
            return
        self._connected[pair] = True
        for node_id, peer in (pair, pair[::-1]):
            self.processes[node_id].transport._onNodeConnected(Node(peer))

    def _disconnected(self, one: int, other: int) -> None:
        pair = (min(one, other), max(one, other))
        if not self._connected.get(pair):
            return
        self._connected[pair] = False
        for node_id, peer in (pair, pair[::-1]):
            self._streams[node_id, peer].clear()
            process = self.processes.get(node_id)
            if process is not None:
                process.transport._onNodeDisconnected(Node(peer))
        self.scheduler.after(self.random.choice(RECONNECT_DELAYS_MS), self._connect, one, other)

    def transmit(self, process: Process, peer: int, message: dict[str, Any]) -> bool:
        """Puts a message on the wire; false when there is no connection."""
        pair = (min(process.node_id, peer), max(process.node_id, peer))
        if not process.alive or not self._connected.get(pair):
            return False
        frozen = dict(message)
        if "entries" in frozen:
            frozen["entries"] = list(frozen["entries"])
        sender = Node(process.node_id)

        def deliver() -> None:
            receiver = self.processes[peer]
            self._step(
                receiver, "message", lambda: receiver.transport._onMessageReceived(sender, frozen)
            )

        self._streams[process.node_id, peer].send(deliver)
        return True

    # Clients

    def _client(self) -> None:
        process = self.processes.get(self.random.choice(NODE_IDS))
        if process is not None:
            self._number += 1
            number = self._number

            def answered(_: Any, error: int) -> None:
                if error == FAIL_REASON.SUCCESS:
                    self.scheduler.counts["acknowledged"] += 1

            self._step(process, "put", lambda: process.machine.put(number, callback=answered))
        self.scheduler.after(self.random.expovariate(APPENDS_PER_SECOND / 1_000), self._client)

    def run(self) -> None:
        """Everything.

        Raises:
            Violation: the library broke a promise.
        """
        with _virtual(self.scheduler):
            for node_id in NODE_IDS:
                self._start(node_id)
            self.scheduler.after(500.0, self._client)
            self.nemesis.start(1_500.0)
            self.scheduler.run_until(RUN_MS)


@contextmanager
def _virtual(scheduler: Scheduler) -> Iterator[None]:
    """The library's clock, dice and sockets are ours for a while."""
    looks = 0

    def seconds() -> float:
        nonlocal looks
        looks += 1  # some of its loops end only when time has passed
        return scheduler.now_ms / 1_000 + looks * 1e-9

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(syncobj, "monotonicTime", seconds))
        stack.enter_context(mock.patch.object(syncobj, "random", scheduler.random))
        stack.enter_context(mock.patch.object(syncobj, "createPoller", return_value=_NoPoller()))
        stack.enter_context(mock.patch.object(syncobj, "PIPE_NOTIFIER_ENABLED", False))
        yield
