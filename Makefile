# The two commands a newcomer needs are `make demo` and `make test`; `make help` lists the rest.
.PHONY: board-bundle board-test help setup demo test test-slow check format demo-matrix lock docs dashboards site fuzz-api
BIN := .venv/bin

help: ## list the commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

setup: ## make .venv from the lock files
	@tools/setup

demo: setup ## the main job, end to end, on a virtual board; Ctrl-C ends it (ARGS="--once --seed 3" passes options)
	@$(BIN)/tidegauge demo $(ARGS)

test: setup ## all tests but the slow ones
	@tools/servers
	@$(BIN)/pytest -m "not slow" -n 2 --dist loadfile $(ARGS)

test-slow: setup ## the tests that take minutes, most of them waiting
	@tools/servers
	@$(BIN)/pytest -m slow -n 3 --dist load --timeout 900 $(ARGS)

check: setup ## ruff, formatting, types, import rules
	@$(BIN)/ruff check daemon tests tools dashboards
	@$(BIN)/ruff format --check daemon tests tools dashboards
	@$(BIN)/mypy
	@MYPYPATH=dashboards:daemon $(BIN)/mypy --config-file pyproject.toml -p tidegauge_dashboards
	@$(BIN)/lint-imports

format: setup ## put imports and layout in order
	@$(BIN)/ruff check --fix daemon tests tools dashboards
	@$(BIN)/ruff format daemon tests tools dashboards

.PHONY: bench-compare walkthrough pictures
walkthrough: setup ## tell both stories and renew the pictures of docs/walkthrough.md
	@rm -rf build/stories
	@$(BIN)/tidegauge demo --story low-light --keep build/stories/low-light
	@$(BIN)/tidegauge demo --story sdk-upgrade --keep build/stories/sdk-upgrade
	@cp build/stories/low-light/before-after.png docs/images/story-low-light.png
	@cp build/stories/low-light/sky.png docs/images/story-low-light-sky.png
	@cp build/stories/sdk-upgrade/before-after.png docs/images/story-sdk-upgrade.png

pictures: setup ## renew the pictures of the report and of the collector's pages in docs/images; needs mosquitto, chromium
	@PYTHONPATH=tests $(BIN)/python -m browser.pictures $(ARGS)

bench-compare: setup ## speed and memory of the layer comparison, beside its peers; takes minutes and 3 GB of /tmp
	@env -u OPENBLAS_CORETYPE -u OPENBLAS_L2_SIZE $(BIN)/python tests/benchmarks/bench_compare.py $(ARGS)

.PHONY: durability
durability: setup ## power cuts at every step of 10,000 random histories of the spool (ARGS="--histories 100" for fewer)
	@$(BIN)/tidegauge evaluate durability $(ARGS)

.PHONY: fuzz sbom audit
fuzz: setup ## ten minutes of damaged input for all that reads bytes from elsewhere, then bombs (ARGS="--seconds 20")
	@PYTHONPATH=tests $(BIN)/python -m fuzzing.run $(ARGS)

sbom: setup ## build/sbom/*.cdx.json: CycloneDX lists of what is installed on a board and for development, from the locks
	@$(BIN)/python tools/sbom.py $(ARGS)

audit: setup ## known vulnerabilities of what the locks pin; 1 for a finding, 0 for none or where no data base can be reached
	@$(BIN)/python tools/audit.py $(ARGS)

.PHONY: chaos
chaos: setup ## kill -9 over board, broker and collector in turn, 200 times, while bundles are on their way; takes minutes
	@$(BIN)/tidegauge evaluate chaos $(ARGS)

.PHONY: bench-link
bench-link: setup ## the link beside a raw publisher and subscriber on the same broker; memory, lag, resets; takes minutes
	@PYTHONPATH=tests env -u OPENBLAS_CORETYPE -u OPENBLAS_L2_SIZE $(BIN)/python tests/benchmarks/bench_link.py $(ARGS)

.PHONY: bench-scale
bench-scale: setup ## 1,000 boards against a collector of several processes, killed in turn; pages on 5 million rows; an hour
	@tools/servers
	@PYTHONPATH=tests env -u OPENBLAS_CORETYPE -u OPENBLAS_L2_SIZE $(BIN)/python tests/benchmarks/bench_scale.py $(ARGS)

demo-matrix: setup ## 20 seeds and all faults × several layers, as the table for docs/demo-matrix.md
	@$(BIN)/python -m tidegauge.demo.matrix $(ARGS)

board-bundle: setup ## dist/tidegauge-VERSION-board.tar.gz: what installs on a board without a network
	@tools/board-bundle

.PHONY: budget soak
budget: setup ## memory, CPU, start-up, wake-ups, threads, bytes written of each process (ARGS="--quick --json F")
	@env -u OPENBLAS_CORETYPE -u OPENBLAS_L2_SIZE $(BIN)/tidegauge bench budget $(ARGS)

soak: setup ## an hour of state changes, reconnects and replaced workers: nothing may grow (ARGS="--minutes 3")
	@$(BIN)/tidegauge bench soak $(ARGS)

board-test: setup ## install, boot, break, upgrade and remove it in a Debian tree with systemd (as root; JSON by ARGS="--json F")
	@tools/servers
	@PYTHONPATH=tests $(BIN)/python -m board.run $(ARGS)

.PHONY: board-test-arm
board-test-arm: setup ## offline install, tests of the core, a demo on Debian 12 aarch64 (qemu) and Debian 13 (as root; half an hour)
	@PYTHONPATH=tests nice -n 10 $(BIN)/python -m board.arm $(ARGS)

lock: ## renew the lock files (needs uv)
	@tools/lock

fuzz-api: setup ## ask the collector's API 200 things by each line of its description (minutes); it must never fail
	@TIDEGAUGE_SCHEMA_EXAMPLES=200 $(BIN)/pytest -q -s --timeout=3600 -p no:xdist tests/integration/test_collector_schemathesis.py

docs: setup ## renew the generated pages of docs/
	@$(BIN)/python tools/configuration_reference.py > docs/configuration.md
	@$(BIN)/python tools/configuration_schemas.py
	@$(BIN)/python tools/exit_codes_reference.py > docs/exit-codes.md
	@$(BIN)/python tools/preflight_reference.py > docs/preflight.md
	@$(BIN)/python tools/http_api_reference.py > docs/http-api.md
	@$(BIN)/python tools/cli_reference.py > docs/cli.md
	@$(BIN)/python tools/metrics_reference.py > docs/metrics.md
	@$(BIN)/python tools/events_reference.py > docs/events.md
	@$(BIN)/python tools/journal_catalog.py > systemd/tidegauge.catalog
	@$(BIN)/python -m tidegauge.compare.schema
	@$(BIN)/python tools/wire_schemas.py

.PHONY: docs-commands
docs-commands: setup ## the commands of each page of docs/ in order, as a reader would; minutes (as root; ARGS=--list: which)
	@$(BIN)/python tools/docs_commands.py $(ARGS)

RUNBOOK ?= https://tidegauge.example.org/runbook
dashboards: setup ## renew dashboards/: rules, routes, Grafana (RUNBOOK=https://… is where alerts link to)
	@PYTHONPATH=dashboards $(BIN)/python -m tidegauge_dashboards --runbook $(RUNBOOK)

site: setup ## the documentation as pages in build/site; a broken link fails
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
