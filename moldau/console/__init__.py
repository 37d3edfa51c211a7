"""The console: a JSON API about a Kafka cluster, and the page that is built on it.

It stands on the client's public face alone, so that it runs in a node's HTTP thread and, as `moldau
console`, beside any Kafka cluster. It has no power: each request acts with the rights of the person
who sent it, over client connections that show that person's own credentials.

How a request goes (`application.py`): `guard` looks at its host, site and path; `sessions` and
`clients` say who asks and give that person's clients; `routes` finds the handler, whose answer, or
whose `Problem`, goes back.

A new resource is one file: below `v3/` where Confluent's REST v3 has its paths, else below `own/`.
It has its handlers, functions of a `Call` that return a `Reply` or write a `Stream`, and at its end
a table `ROUTES`, which gets a line in `tables.py`:

    async def show_quorum(call: Call) -> Reply:
        clients = await call.clients()                      # Problem 401, or the person's clients
        quorum = await clients.admin.describe_metadata_quorum()     # a KafkaError becomes a Problem
        return Reply({"leader_id": quorum.leader_id})

    ROUTES: Final = (
        Route(
            method="GET",
            path="/api/v1/clusters/{cluster_id}/quorum",    # checked against the cluster's id
            handler=show_quorum,
            name="getQuorum",                               # operationId of the OpenAPI document
            summary="The metadata quorum",
            needs="Describe on the cluster",                # what the brokers' ACLs have to allow
            query=(Parameter("limit", "At most so many.", INTEGER, default=100),),  # → call.query
            body=record({"to": STRING}),                    # JSON, checked → call.body
            answer=named("Quorum", record({"leader_id": INTEGER})),
        ),
    )

Limits stand in the route (`max_body_bytes`, `time_limit_s`, `is_stream`) and, for readers of
records, in `settings.Limits`. `/openapi.json` is made from the same table.
"""
