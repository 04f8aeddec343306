# Every target makes the environment it needs; `make` alone says what there is.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:

BIN := .venv/bin
INSTALLED := .venv/.installed
# Any Python will do to start with: the script finds the right one, or PYTHON names it.
ANY_PYTHON = $(shell command -v python3 || command -v python || echo python3)

# What runs here leaves nothing in the user's own cache, and `make clean` removes it.
export SPARK_STREAM_CACHE := $(CURDIR)/.work/cache

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(INSTALLED): pyproject.toml constraints.txt scripts/setup_env.py
	@$(ANY_PYTHON) scripts/setup_env.py

.PHONY: setup
setup: ## Make .venv with everything, and find or install Java (PYTHON chooses the Python)
	@$(ANY_PYTHON) scripts/setup_env.py

.PHONY: demo
demo: $(INSTALLED) ## Run the example DAG with real Airflow and real Spark
	@$(BIN)/python scripts/demo.py

.PHONY: check
check: $(INSTALLED) ## Lint, formatting, types, spelling, import rules, test docstrings, the documentation
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/codespell
	$(BIN)/lint-imports --no-logo
	$(BIN)/interrogate --quiet tests
	$(BIN)/python scripts/docs_site.py

.PHONY: docs
docs: $(INSTALLED) ## Build the documentation into .work/site; a dead link is an error
	@$(BIN)/python scripts/docs_site.py

.PHONY: docs-serve
docs-serve: $(INSTALLED) ## Show the documentation at http://127.0.0.1:8000, as its pages change
	@$(BIN)/python scripts/docs_site.py --serve

.PHONY: format
format: $(INSTALLED) ## Format, and fix what can be fixed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: wheel
wheel: $(INSTALLED) ## Build the wheel, install it into an empty environment with Airflow, try it
	@$(BIN)/python scripts/check_wheel.py

.PHONY: release-check
release-check: $(INSTALLED) ## All of a release but the upload, into dist/: builds, checks, each Airflow, the SBOM
	@$(BIN)/python scripts/release_check.py $(ARGS)

# Each process may start a JVM, and all share what else there is: tests/conftest.py, tests/README.md.
# Tests that wait for other processes leave a core free, tests that compute do not. What is compiled
# once is not compiled again by the hundreds of processes that tests start.
WAITING := -n 3
COMPUTING := -n 2
CHOICE := not soak and not whole and not real
SHORT := $(CHOICE) and not long
WITHOUT_JVM := not spark and not airflow and not alone
test test-ci test-all test-fast coverage: export PYTHONDONTWRITEBYTECODE :=

.PHONY: test
test: $(INSTALLED) ## A choice of cases, without the longest: about eight minutes (ARGS adds pytest options)
	$(call pytest_together_and_alone,$(SHORT))

.PHONY: test-ci
test-ci: $(INSTALLED) ## What CI runs, every promise by a choice of cases: twenty to thirty minutes
	$(call pytest_together_and_alone,$(CHOICE))

.PHONY: test-all
test-all: $(INSTALLED) ## Every test but the soak ones: the whole products of cases, too
	$(call pytest_together_and_alone,not soak and not real,--hypothesis-profile=whole)

# What runs alone lies in tests/perf. `-m` may select nothing of what ARGS names (exit code 5).
define pytest_together_and_alone
	@failed=0; set -x; \
	$(BIN)/python -m pytest -m "not alone and $(1)" $(2) $(WAITING) $(ARGS) || [ $$? -eq 5 ] || failed=1; \
	$(BIN)/python -m pytest -m "alone and $(1)" $(or $(ARGS),tests/perf) || [ $$? -eq 5 ] || failed=1; \
	exit $$failed
endef

.PHONY: test-airflow-versions
test-airflow-versions: $(INSTALLED) ## The tests of the Airflow side with each supported version of Airflow
	@$(BIN)/python scripts/airflow_versions.py $(ARGS)

# Where hardly a fast test lies is not even imported, for that takes seconds in each process.
SLOW_PLACES := airflow contract crash extensions property spark
.PHONY: test-fast
test-fast: $(INSTALLED) ## The kernel's tests that take no time: half a minute, without Spark and Airflow
	$(BIN)/python -m pytest -m "$(WITHOUT_JVM) and $(SHORT) and not slow" $(COMPUTING) \
		$(addprefix --ignore=tests/,$(SLOW_PLACES)) $(ARGS)

.PHONY: coverage
coverage: $(INSTALLED) ## Branch coverage of the protocol by what starts no JVM; fails below its limit
	$(BIN)/python -m pytest -q -m "$(WITHOUT_JVM) and $(CHOICE)" $(COMPUTING) --ignore=tests/airflow --ignore=tests/crash \
		--ignore=tests/spark --hypothesis-profile=whole --cov --cov-config=coverage-protocol.toml $(ARGS)

.PHONY: soak
soak: $(INSTALLED) ## The tests that run for long
	$(BIN)/python -m pytest -m soak --timeout=0 $(ARGS)

.PHONY: test-real
test-real: $(INSTALLED) ## With real systems, from Maven and the Go proxy: fetched or built once, or skipped by name
	$(BIN)/python -m pytest -m "real and not soak" $(or $(ARGS),tests/real)

.PHONY: test-real-ci
test-real-ci: $(INSTALLED) ## A choice of it for CI, three minutes: the contract of the sink for Kafka
	$(BIN)/python -m pytest -m "real and not soak" -n 2 -k 4.4.0 tests/real/kafka/test_sink_contract.py

.PHONY: test-versions
test-versions: $(INSTALLED) ## The same promises on each version of Spark, as a table (VERSIONS chooses, ARGS adds options)
	@$(BIN)/python scripts/versions.py $(VERSIONS) $(ARGS)

.PHONY: bench
bench: $(INSTALLED) ## Compare with plain PySpark, savepoints with copies, state with Parquet; how jobs start, end, are waited for, and grow; DAGs of short tasks
	@missed=0; \
	$(BIN)/python scripts/bench.py --batches 2 || missed=1; \
	$(BIN)/python scripts/bench.py --batches 20 --sinks all || missed=1; \
	$(BIN)/python scripts/benchmarks/start.py || missed=1; \
	$(BIN)/python scripts/benchmarks/warm.py || missed=1; \
	$(BIN)/python scripts/benchmarks/dag.py || missed=1; \
	$(BIN)/python scripts/benchmarks/savepoints.py running || missed=1; \
	$(BIN)/python scripts/benchmarks/savepoints.py size || missed=1; \
	$(BIN)/python scripts/benchmarks/backpressure.py || missed=1; \
	$(BIN)/python scripts/benchmarks/ends.py || missed=1; \
	$(BIN)/python scripts/benchmarks/state.py || missed=1; \
	$(BIN)/python scripts/benchmarks/waits.py || missed=1; \
	$(BIN)/python scripts/benchmarks/growth.py || missed=1; \
	$(BIN)/python scripts/benchmarks/history.py || missed=1; \
	$(BIN)/python scripts/benchmarks/scale.py --cluster || missed=1; \
	$(BIN)/python scripts/benchmarks/kafka.py || missed=1; \
	$(BIN)/python scripts/benchmarks/tables.py || missed=1; \
	$(BIN)/python scripts/benchmarks/keyed_sinks.py || missed=1; \
	exit $$missed

.PHONY: bench-flink
bench-flink: $(INSTALLED) ## Compare with Flink, which is installed in .work: warm, and as whole commands
	@$(BIN)/python scripts/benchmarks/flink.py $(ARGS)

.PHONY: bench-rows
bench-rows: $(INSTALLED) ## What rules for rows cost, and twenty of them beside two libraries, which are installed in .work
	@$(BIN)/python scripts/benchmarks/rows/rows.py $(ARGS)

.PHONY: bench-nexmark
bench-nexmark: $(INSTALLED) ## Nexmark's queries on this runtime, as plain PySpark and on Flink, against the truth
	@$(BIN)/python scripts/benchmarks/nexmark/nexmark.py $(ARGS)

.PHONY: clean
clean: ## Remove all that was made here, except .venv
	rm -rf .airflow .cache .work spark-warehouse metastore_db derby.log build dist htmlcov .coverage
	rm -rf .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache *.egg-info
	find . -path ./.venv -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
