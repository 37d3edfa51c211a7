"""The second level of simulation: production nodes on a virtual clock, network and disk.

    make sim SIM=cluster SEED=17                 one seed with its trace
    make sim SIM=cluster SEEDS=0-999 WORKERS=2   a range; MINUTES=m for as many as fit
    python -m tests.simulation.cluster.run --seeds 1-20 --controllers 3 \
        --faults storage_outage --bug unflushed-counts      with an injected bug

What is production code here: runtime's Server and Connection, the whole of `moldau.raft` with its
files, the controller with its core, server, router and APIs of its listener, controller
registration, the broker's lifecycle, its channel to the controller and its metadata loader. What is
simulated: event loop, time and network (`tests.virtual`), disks (`disk`, on
the storage tests' file system), and who uses the cluster: brokers' leadership duties, clients, the
operator of the quorum. `ledger` and `image_checks` hold the promises, `security_ledger` and
`security_checks` those of access control, SCRAM credentials and client quotas, which
`security_administrator` changes. `nemesis` breaks things, `base_world` and `world` are one seed's
run, `run` the command line, `injected_bugs` and `injected_security_bugs` the known ways to get it
wrong. `tests/simulation/replication` adds brokers with data.
"""
