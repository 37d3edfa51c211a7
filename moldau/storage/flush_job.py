"""FlushJob: what makes a log durable up to an offset, as one call for the disk thread.

Owns: the fsyncs and their order: everything below the new recovery point, then the directory.
Must not: touch the log's state; `Log.finish_flush` applies the outcome on the loop.
Invariant: `failure` and `no_room` are None only if every file of the job was synced.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from moldau.runtime.filesystem import File, Filesystem
from moldau.storage.faults import is_out_of_descriptors, is_out_of_room
from moldau.storage.leader_epoch_cache import LeaderEpochCache
from moldau.storage.segment import LogSegment


@dataclass(slots=True)
class FlushJob:
    """The files to sync for one log. `run` blocks on the disk and may run in any thread."""

    filesystem: Filesystem
    directory: str
    offset: int
    """The log end offset when the job was made: the recovery point after it."""
    leader_epoch_cache: LeaderEpochCache
    truncation_count: int
    files: list[File] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    failure: OSError | None = None
    no_room: OSError | None = None
    """Set instead if no fsync failed, but there was no room for the leader epochs or no descriptor
    for a file: the disk's state is known, and another flush may succeed."""

    def add(self, segment: LogSegment) -> None:
        """Sync the segment's files; its log file stays open until the job has run.

        Raises: OSError; then the job must not run.
        """
        try:
            file = segment.file()
        except OSError:
            self._release()
            raise
        file.acquire()
        self.files.append(file)
        self.paths += [segment.offset_index.path, segment.time_index.path]
        if segment.transaction_index.exists():
            self.paths.append(segment.transaction_index.path)

    def _release(self) -> None:
        for file in self.files:
            file.release()
        self.files.clear()

    def run(self) -> None:
        """Sync all of it. Never raises: the outcome is in `failure` and `no_room`."""
        try:
            for file in self.files:
                file.fdatasync()
            for path in self.paths:
                self._sync_path(path)
            try:
                self.leader_epoch_cache.write()
            except OSError as error:
                if not is_out_of_room(error):
                    raise
                self.no_room = error
            else:
                self.filesystem.fsync_directory(self.directory)
        except OSError as error:
            if is_out_of_descriptors(error):
                self.no_room = error
            else:
                self.failure = error
        finally:
            self._release()

    def _sync_path(self, path: str) -> None:
        # Through a descriptor of its own: fsync covers mapped pages too, and the loop may trim,
        # unmap or delete the file at the same time.
        try:
            file = self.filesystem.open(path)
        except FileNotFoundError:
            return
        try:
            file.fsync()
        finally:
            file.close()
