# Every target says what it does: `make help`. Nothing but python3 (3.11 or newer) and make is needed.
PYTHON ?= python3
# Another place for the environment: make setup VENV=/tmp/venv
VENV ?= .venv
BIN := $(VENV)/bin
PYTEST_ARGS ?=
PYTEST = $(BIN)/python -m pytest --dist loadfile --no-loadscope-reorder
BENCH ?=
BENCH_ARGS ?=
SIM_ARGS = $(if $(SEED),--seed $(SEED)) $(if $(SEEDS),--seeds $(SEEDS)) $(if $(MINUTES),--minutes $(MINUTES)) \
	$(if $(FIRST_SEED),--first-seed $(FIRST_SEED)) $(if $(BUG),--bug $(BUG)) $(if $(WORKERS),--workers $(WORKERS))

# Tests start thousands of Python processes: none of them compiles the package again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup setup-all test test-all long helm fmt lint checks type mypy public-types style tidy sim fuzz-listeners soak soak-transactions soak-client soak-faces soak-topics mutants interop differential-groups spark spark-matrix docs site dist try-dist bench bench-client bench-spark demo demo-node demo-isr demo-transactions clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-17s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## What the gate needs, into .venv (VENV=place): 400 MB, one to three minutes; nothing to do when up to date
	@$(PYTHON) .ci/bootstrap.py lean $(VENV)

setup-all: ## Spark, Java, the demos' data and others' tools too: 2 GB, up to fifteen minutes; targets that need them do it
	@$(PYTHON) .ci/bootstrap.py all $(VENV)

test: setup checks ## The gate, within ten minutes on two cores: style, types, import contracts, all logic, and each client and tool once
	$(PYTEST) -n 3 -m "gate or smoke" --run-again $(PYTEST_ARGS)

test-all: setup-all helm checks ## What continuous integration runs: the gate, and everything with processes, clients of others, Java and Spark
	$(PYTEST) -n 4 -m "not long" --run-again $(PYTEST_ARGS)

long: setup-all ## Random seeds, soaks, fuzzers, hypothesis at large, mutants, minutes of Spark: MINUTES=n in all, ONLY="a b", SEED=n
	@$(BIN)/python -m tests.kit.long_run $(if $(MINUTES),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED)) $(if $(ONLY),--only $(ONLY))

helm: setup ## Build helm from its Go module into .cache, where Go is and helm is not: tests of the chart use it
	@$(PYTHON) .ci/bootstrap.py helm

fmt: setup ## Format the code, fix what can be fixed mechanically, write the blocking admin client, the types of clients' settings and of packages' names
	PYTHONPATH=. $(BIN)/python tools/client_keywords.py
	PYTHONPATH=. $(BIN)/python tools/blocking_admin.py
	PYTHONPATH=. $(BIN)/python tools/package_names.py
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

lint: setup ## Style, types, import contracts and the rules of tests/tidy, on two cores
	@$(MAKE) --no-print-directory -j 2 -O mypy public-types style tidy

checks: setup ## What is checked before any test runs: lint without tidy, which is among the tests
	@$(MAKE) --no-print-directory -j 2 -O mypy public-types style

type: mypy public-types ## Static types, strictly; and the client's public types are complete for pyright

mypy: setup ## Static types, strictly
	$(BIN)/mypy
	$(BIN)/mypy --strict tests/unit/client/typed_application.py

public-types: setup ## The client's public types are complete for pyright
	$(BIN)/python .ci/public_types.py

style: setup ## Style and import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache

tidy: setup ## The rules of tests/tidy: words, files, documents, generated code
	$(BIN)/python -m pytest -q --no-header -n 0 tests/tidy

sim: setup ## The quorum under simulated faults: SEED=n with its trace, SEEDS=a-b, or MINUTES=m (WORKERS=2); SIM=cluster: whole nodes, SIM=replication: with data, SIM=transactions: with coordinators
	@$(BIN)/python -m tests.simulation.$(if $(SIM),$(SIM).)run $(SIM_ARGS)

soak: setup ## Real brokers under load and random faults, as root: MINUTES=m, SEED=n to replay its schedule, ONLY=fault,… only those, SECURE=1 with TLS and SASL
	@$(BIN)/python -m tests.system.replication.soak $(if $(MINUTES),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED)) $(if $(ONLY),--only $(ONLY)) $(if $(SECURE),--secure)

soak-transactions: setup ## Transactions and groups on real brokers under random faults: MINUTES=m, SEED=n, EVERYTHING=1 with reassignments, SECURE=1 with TLS and SASL (as root)
	@$(BIN)/python -m tests.system.transactions.soak $(if $(MINUTES),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED)) $(if $(EVERYTHING),--everything) $(if $(SECURE),--secure)

fuzz-listeners: setup ## Nonsense and greedy clients at every listener, while good clients are served: MINUTES=m, SEED=n, ONLY=play,…
	@$(BIN)/python -m tests.system.security.front_ends $(if $(MINUTES),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED)) $(if $(ONLY),--only "$(ONLY)")

soak-client: setup ## A million records through consume-transform-produce with our client, with kills, exactly once: RECORDS=n, KILLS=n, SEED=n, PROTOCOL=consumer
	@$(BIN)/python -m tests.system.client.exactly_once $(if $(RECORDS),--records $(RECORDS)) $(if $(KILLS),--kills $(KILLS)) $(if $(SEED),--seed $(SEED)) $(if $(PROTOCOL),--protocol $(PROTOCOL))

soak-faces: setup ## Both faces of the client under signals, cancellations and threads, on the fake cluster: RECORDS=n of each kind (a million), SEED=n
	@$(BIN)/python -m tests.unit.client.fire.run $(if $(RECORDS),--records $(RECORDS)) $(if $(SEED),--seed $(SEED))

soak-topics: setup-all ## Topics deleted, created again, grown, moved and led by others under clients and results stores: MINUTES=n, SEED=n, READERS="assigned stores"
	@$(BIN)/python -m tests.system.topics.soak $(if $(MINUTES),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED)) $(if $(READERS),--readers $(READERS))

mutants: setup-all ## Small changes of cores and storage, and whether a fast test fails: AREAS="a b", COUNT=n, SEED=n, WORKERS=n
	@$(BIN)/python -m tests.mutation.run $(if $(AREAS),--areas $(AREAS)) $(if $(COUNT),--count $(COUNT)) $(if $(SEED),--seed $(SEED)) $(if $(WORKERS),--workers $(WORKERS)) $(MUTANTS_ARGS)

interop: setup-all ## Only the tests against real Kafka clients and tools
	$(PYTEST) -n 2 tests/interop $(PYTEST_ARGS)

differential-groups: setup-all ## Random sequences of group requests to our broker and to Apache Kafka's: SEQUENCES=n, SEED=n, FIRST=n
	@$(BIN)/python -m tests.interop.differential.groups.run $(if $(SEQUENCES),--sequences $(SEQUENCES)) $(if $(SEED),--seed $(SEED)) $(if $(FIRST),--first $(FIRST))

spark: setup-all ## Everything with Spark, the long ones too: drivers and executors killed at every step, every job
	$(BIN)/python -m pytest tests/spark $(PYTEST_ARGS)

spark-matrix: setup-all ## tests/spark with older PySparks too: VERSIONS="4.1 4.2"
	$(BIN)/python .ci/spark_matrix.py $(VERSIONS)

docs: setup ## Write the generated parts of the documents: tables, commands, state diagrams
	$(BIN)/python docs/generate.py

site: setup ## Build the documents as a site into build/site; a warning or a dead link fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/python tools/with_extra.py docs -m mkdocs build --strict

dist: setup ## Build and check dist/: a source distribution, and a wheel for this Python (manylinux where auditwheel runs)
	$(BIN)/python tools/with_extra.py release tools/distributions.py

try-dist: setup ## Install dist/ into clean environments, with and without a compiler, and use each: PYTHONS="python3.12 python3.13"
	$(BIN)/python tools/try_distributions.py $(PYTHONS)

bench: setup-all ## Side by side with peers and limits (BENCH=name for one of them)
	$(BIN)/python -m benchmarks.run $(BENCH) $(BENCH_ARGS)

bench-spark: setup-all ## Our Spark source and sink beside Spark's own: rows/s, micro-batches (needs Java; Maven for Spark's own)
	PYTHONPATH=$$($(BIN)/python .ci/spark_matrix.py --fetch 4.1) $(BIN)/python -m benchmarks.run spark $(BENCH_ARGS)

bench-client: setup-all ## The client beside confluent-kafka, aiokafka and kafka-python: throughput, CPU, memory
	$(BIN)/python -m benchmarks.run client $(BENCH_ARGS)

demo: setup-all ## 336,776 flights through 3+3 nodes and Spark, exactly once, while a broker, the controller and the driver are killed
	@$(BIN)/python -m demo.story $(DEMO_ARGS)

demo-node: setup-all ## One node, 336,776 flights, clients of others, and a kill -9 in the middle
	$(BIN)/python demo/flights.py

demo-isr: setup ## Three brokers: a link is cut, replicas die, unclean election off and on, as a timeline
	@$(BIN)/python -m demo.isr

demo-transactions: setup-all ## 336,776 flights through transactions while brokers, coordinators and the application are killed: DEMO_ARGS="--protocol consumer"
	@$(BIN)/python -m demo.transactions $(DEMO_ARGS)

clean: ## Remove the virtual environment and every cache
	rm -rf .venv .cache build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
