"""FlushJob: what makes a log durable up to an offset, as one call for the disk thread.

Owns: the fsyncs, and their order: everything the recovery point vouches for, then the directory.
Must not: touch the log's state; the loop takes in the outcome (`Log.finish_flush`).
Invariant: `failure` and `no_room` are None only if every file of the job was synced.
"""

from __future__ import annotations

from moldau.runtime.filesystem import File, Filesystem
from moldau.storage.faults import is_out_of_descriptors, is_out_of_room
from moldau.storage.leader_epoch_cache import LeaderEpochCache


class FlushJob:
    """The files to sync for one log. `run` blocks on the disk and may run in any thread."""

    __slots__ = (
        "directory",
        "failure",
        "files",
        "filesystem",
        "leader_epoch_cache",
        "no_room",
        "offset",
        "paths",
        "truncation_count",
    )

    def __init__(
        self,
        filesystem: Filesystem,
        directory: str,
        offset: int,
        leader_epoch_cache: LeaderEpochCache,
        truncation_count: int,
    ) -> None:
        self.filesystem = filesystem
        self.directory = directory
        self.offset = offset
        """The log end offset when the job was made: the recovery point when it is done."""
        self.leader_epoch_cache = leader_epoch_cache
        self.truncation_count = truncation_count
        self.files: list[File] = []
        self.paths: list[str] = []
        self.failure: OSError | None = None
        self.no_room: OSError | None = None
        """Set instead if no fsync failed, but there was no room for the leader epochs or no
        descriptor for a file: what is on the disk is known, and another flush may do."""

    def add_file(self, file: File) -> None:
        """Sync this open file; it stays open until the job has run."""
        file.acquire()
        self.files.append(file)

    def run(self) -> None:
        """Sync all of it. Never raises: the outcome is in `failure` and `no_room`."""
        try:
            for file in self.files:
                file.fdatasync()
            for path in self.paths:
                self._sync_path(path)
            if self._write_epochs():
                self.filesystem.fsync_directory(self.directory)
        except OSError as error:
            if is_out_of_descriptors(error):
                self.no_room = error
            else:
                self.failure = error
        finally:
            for file in self.files:
                file.release()
            self.files.clear()

    def _write_epochs(self) -> bool:
        try:
            self.leader_epoch_cache.write()
        except OSError as error:
            if not is_out_of_room(error):
                raise
            self.no_room = error
            return False
        return True

    def _sync_path(self, path: str) -> None:
        # Through a descriptor of its own: it covers mapped pages too, and the loop may trim, unmap
        # or delete the file meanwhile.
        try:
            file = self.filesystem.open(path)
        except FileNotFoundError:
            return
        try:
            file.fsync()
        finally:
            file.close()
