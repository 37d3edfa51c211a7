"""What docs/operations.md asks an operator to do about a damaged partition works."""

from __future__ import annotations

from pathlib import Path

from moldau.testing import Cluster
from tests.interop.topics import TopicMaker
from tests.system.processes import Writer, read_all, run_cli

SEGMENT = "00000000000000000000.log"


def test_a_damaged_partition_is_cut_before_the_damage(tmp_path: Path) -> None:
    with Cluster(directory=tmp_path) as cluster, TopicMaker(cluster.bootstrap_server) as maker:
        writers = {}
        for name in ("damaged", "sound"):
            maker.create(name)
            writers[name] = Writer(cluster.bootstrap_server, name)
            for _ in range(3):
                writers[name].send(50)
                writers[name].flush()
        cluster.stop()
        data = cluster.data_directory()
        segment = data / "damaged-0" / SEGMENT
        content = bytearray(segment.read_bytes())
        first_batch_bytes = 12 + int.from_bytes(content[8:12], "big")
        content[first_batch_bytes + 70] ^= 0x55
        segment.write_bytes(content)
        cluster.restart()
        asked = run_cli("bench", "consume", "damaged", "-b", cluster.bootstrap_server)
        assert "KAFKA_STORAGE_ERROR" in asked.complaint
        assert "damaged-0: taken offline" in cluster.node().log_tail()
        assert len(read_all(cluster.bootstrap_server, "sound")) == 150
        cluster.stop()
        found = run_cli("log", "verify", data)
        assert found.status == 1
        assert f"{segment}" in found.output
        assert f"{first_batch_bytes}" in found.output

        # The runbook's step: nothing of this partition is vouched for any more.
        checkpoint = data / "recovery-point-offset-checkpoint"
        lines = checkpoint.read_text().splitlines()
        kept = [line for line in lines[2:] if not line.startswith("damaged 0 ")]
        checkpoint.write_text("\n".join([lines[0], str(len(kept)), *kept, ""]))
        cluster.restart()
        values = read_all(cluster.bootstrap_server, "damaged")
        assert [int(value.split(b":")[0]) for value in values] == list(range(len(values)))
        assert 1 <= len(values) <= 50
        assert len(read_all(cluster.bootstrap_server, "sound")) == 150
        cluster.stop()
        assert run_cli("log", "verify", data).status == 0
        cluster.restart()
