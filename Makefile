# `make` alone lists the targets. Everything runs in .venv, which `make install` makes.
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
export PYTHONUNBUFFERED := 1

VENV := .venv/bin
RUN := $(VENV)/python
# PYTHON=... chooses the interpreter of .venv; without it, the first that is 3.11 or later.
PYTHON ?=
PYTEST_ARGS ?=
# Test files that run at once; most of their time is waiting. TEST_JOBS=0 runs them one by one, in order.
TEST_JOBS ?= 2
PROMPTS ?=
PROFILE ?= cpu

##@ Use
.PHONY: help install demo up-local down-local

help: ## List these targets
	@awk 'BEGIN { FS = ":.*## " } \
		/^##@/ { printf "\n%s\n", substr($$0, 5) } \
		/^[a-z0-9-]+:.*## / { printf "  %-18s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

install: .venv/.installed ## Make .venv from locks/cpu.txt (PYTHON=... to choose the interpreter)

.venv/.installed: locks/cpu.txt pyproject.toml
	@for python in $(or $(PYTHON),python3.11 python3.12 python3.13 python3); do \
		if $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
			exec $$python tools/install.py; \
		fi; \
	done; \
	echo "error: $(if $(PYTHON),$(PYTHON) is not,found no) Python 3.11 or later;" \
		"install one, or name it: make install PYTHON=/path/to/python3.11" >&2; \
	exit 1

demo: install ## Train and evaluate a small draft from end to end (PROMPTS=file.jsonl for yours)
	@$(RUN) -m tools.demo $(if $(PROMPTS),--prompts "$(PROMPTS)")

up-local: install ## Start Redis, gateway, worker and tiny verifier here, without containers
	@$(RUN) -m tools.local_stack up

down-local: install ## Stop what up-local started
	@$(RUN) -m tools.local_stack down

##@ Containers (docs/compose.md)
.PHONY: secrets images up down compose-test

secrets: ## Make the secret files that compose.yaml reads, in secrets/ or EYRIE_SECRETS
	@sh docker/secrets.sh

images: ## Build the images of a profile (PROFILE=cpu)
	@EYRIE_REVISION=$$(git rev-parse HEAD 2>/dev/null || echo unknown) docker compose --profile $(PROFILE) build

up: secrets ## Start the containers of a profile and wait until they are healthy (PROFILE=cpu)
	@docker compose --profile $(PROFILE) up --detach --wait

down: ## Stop the containers; volumes stay
	@docker compose --profile "*" down

compose-test: ## Build, start, train, scale and stop containers for real; ends with one line of JSON
	@$(or $(PYTHON),python3) -m tools.compose_test $(COMPOSE_TEST_ARGS)

##@ Check
.PHONY: test test-unit test-integration test-e2e test-slow test-gpu check-data check-api chaos lint format

test: install ## Run the tests but the slow ones (PYTEST_ARGS=... for more)
	@$(RUN) -m pytest -m "not slow" -n $(TEST_JOBS) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

test-unit: install ## Run the unit tests
	@$(RUN) -m pytest tests/unit $(PYTEST_ARGS)

test-integration: install ## Run the tests on a real Redis with real RQ workers
	@$(RUN) -m pytest tests/integration $(PYTEST_ARGS)

test-e2e: install ## Run the tests on real vLLM and speculators
	@$(RUN) -m pytest tests/e2e $(PYTEST_ARGS)

test-slow: install ## Run what `make test` leaves out: whole trainings, killed and resumed
	@$(RUN) -m pytest -m slow $(PYTEST_ARGS)

test-gpu: install ## Run the tests of leases on the GPUs of this machine, which nobody else may use meanwhile
	@$(RUN) -m pytest tests/gpu $(PYTEST_ARGS)

check-data: install ## Run the tests of datasets and masks, and 200,000 rows; ends with one line of JSON
	@$(RUN) -m tools.check_data $(PYTEST_ARGS)

check-api: install ## Check the API by its own description, event streams, the page, docs/api.md; ends with one line of JSON
	@$(RUN) -m tools.check_api $(PYTEST_ARGS)

chaos: install ## Break everything, often, and check what must hold; ends with one line of JSON (CHAOS_ARGS=--seed=2)
	@$(RUN) -m tools.chaos $(CHAOS_ARGS)

lint: install ## Check style and types
	@$(VENV)/ruff check .
	@$(VENV)/ruff format --check .
	@$(VENV)/mypy

format: install ## Mend style and import order
	@$(VENV)/ruff check --fix .
	@$(VENV)/ruff format .

##@ Maintain
.PHONY: lock tiny-verifier clean

lock: install ## Write locks/cpu.txt again (LOCK_ARGS=--upgrade for newer versions)
	@$(RUN) -m tools.lock $(LOCK_ARGS)

tiny-verifier: install ## Train the small Kimi-K2.5-shaped verifier again
	@$(RUN) -m tools.make_tiny_verifier --out assets/tiny-verifier --prompts assets/prompts/demo.jsonl

clean: ## Remove .venv, caches and local state (var/)
	rm -rf .venv var build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
