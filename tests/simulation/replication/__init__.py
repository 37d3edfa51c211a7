"""The third level of simulation: whole clusters with data, on the loop, network and disk of
`cluster/`.

    make sim SIM=replication SEED=17                 one seed with its trace
    make sim SIM=replication SEEDS=0-999 WORKERS=2   a range; MINUTES=m for as many as fit
    python -m tests.simulation.replication.run --seeds 1-20 --faults kill_broker,cut_replication

What is production code here: everything of a controller, and of a broker its whole `BrokerPart`
(server, router, APIs, replica manager, fetchers, log manager and logs, lifecycle) with its replica
of the metadata log and its channel to the controller. What is simulated: time, network, disks, and
the clients, which use the production `Connection`. `taps` lets `ledger` watch every log; `world` is
one seed's run, `nemesis` breaks things, `injected_bugs` the known ways to get it wrong.
"""
