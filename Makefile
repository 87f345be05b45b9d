# Pagoda's commands. Only Python 3.11 or newer, git and make are assumed.
#
#   make serve                                      serve the default model
#   make serve ARGS="--model path/to/model --port 8001"
#   PYTHON=python3.12 make install                  choose the interpreter

.DEFAULT_GOAL := help
.PHONY: help install serve test browser redis long check docs lint wheel trial lowest hashes pictures

VENV := .venv
BIN := $(VENV)/bin
LOCK := requirements.lock
HASHED := requirements-hashed.txt
ARGS ?=

# The first interpreter that is new enough.
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo $$python && break; done)

CHROMIUM = $(shell for name in chromium-headless-shell chromium chromium-browser google-chrome \
	google-chrome-stable; do \
	command -v $$name && break; done)

REDIS = $(shell for name in redis-server valkey-server; do command -v $$name && break; done)

# Tests for which there is no program here, as pytest is told to leave them out.
LEFT_OUT = $(if $(CHROMIUM),$(if $(REDIS),,-m "not redis"),\
	-m "not browser$(if $(REDIS),, and not redis)")

SITE := import sysconfig; print(sysconfig.get_path("purelib"))

PIP := $(BIN)/python -m pip --disable-pip-version-check

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(VENV)/installed ## create .venv and install Pagoda, the pinned lock and the default model

serve: $(VENV)/installed ## serve on http://127.0.0.1:8000; flags go into ARGS="..."
	@$(BIN)/pagoda serve $(ARGS)

# Tests start a hundred processes, which would compile every module anew where nothing is kept.
test: lint browser redis ## the checks, then the whole test suite; pytest's flags go into ARGS="..."
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --processes auto $(LEFT_OUT) $(ARGS)

browser: ## install Chromium for the tests of the page, where that needs no question
	@if test -n "$(CHROMIUM)"; then :; \
	elif test "$$(id -u)" = 0 && command -v apt-get >/dev/null; then \
	apt-get -qq update && DEBIAN_FRONTEND=noninteractive \
	apt-get -qq install --no-install-recommends chromium-headless-shell >/dev/null; \
	else echo "make: there is no Chromium here: the tests that need it are left out"; fi

redis: ## install Redis for the tests of shared tiers, where that needs no question
	@if test -n "$(REDIS)"; then :; \
	elif test "$$(id -u)" = 0 && command -v apt-get >/dev/null; then \
	apt-get -qq update && DEBIAN_FRONTEND=noninteractive \
	apt-get -qq install --no-install-recommends redis-server >/dev/null; \
	else echo "make: there is no Redis here: the tests that need it are left out"; fi

long: $(VENV)/installed-dev ## random lives of cache, scheduler and coded engines, 100,000 operations each
	@$(BIN)/python -m pytest --hypothesis-profile=long -o timeout=7200 \
		tests/cache/test_cache_machine.py tests/scheduling/test_scheduler_machine.py \
		tests/engine/test_coded_machine.py

check: lint ## ruff, mypy, and the tests of floors, imports and exports
	@$(BIN)/python -m pytest tests/test_floors.py tests/test_imports.py tests/test_exports.py

docs: $(VENV)/installed ## write the documents' tables that the code knows best
	@$(BIN)/python tools/write_tables.py

# Built from the tracked files alone: a wheel from the checkout would also hold what an earlier build
# or install left there.
wheel: $(VENV)/bin/python ## build the wheel into dist
	@rm -rf build/source dist && mkdir -p build/source
	@git ls-files -z src pyproject.toml README.md LICENSE \
		| tar --null -T - -cf - | tar -xf - -C build/source
	$(PIP) wheel --quiet --no-deps --wheel-dir dist build/source

# The packages that Pagoda needs come from .venv; Pagoda itself does not, since the .pth file of its
# editable install is not read from there. The link is laid last, so that pip does not see that install.
trial: wheel $(VENV)/installed ## install the wheel away from the checkout and try it
	@rm -rf build/trial
	$(BIN)/python -m venv --without-pip build/trial
	$(PIP) --python build/trial install --quiet --no-deps dist/*.whl
	@$(BIN)/python -c '$(SITE)' >"$$(build/trial/bin/python -c '$(SITE)')/needed.pth"
	@$(BIN)/python tools/try_package.py build/trial

lowest: wheel ## try the wheel with the lowest versions that it allows
	@rm -rf build/lowest
	$(BIN)/python -m venv build/lowest
	$(BIN)/python tools/lowest_versions.py >build/lowest.txt
	build/lowest/bin/python -m pip install --quiet -c build/lowest.txt dist/*.whl
	build/lowest/bin/pagoda install-model
	@$(BIN)/python tools/try_package.py build/lowest

hashes: $(VENV)/installed ## write requirements-hashed.txt anew, from the lock
	@test -x build/uv/bin/uv || { $(BIN)/python -m venv build/uv && build/uv/bin/pip install --quiet uv; }
	@$(BIN)/python tools/runtime_packages.py >build/runtime.txt
	build/uv/bin/uv pip compile --quiet --no-deps --generate-hashes --no-annotate \
		--custom-compile-command "make hashes" build/runtime.txt --output-file $(HASHED)

pictures: $(VENV)/installed browser ## make the pictures of the documents anew, in docs/pictures
	@PYTHONPATH=tools:tests $(BIN)/python -m pictures

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "make: Pagoda needs Python 3.11 or newer; set PYTHON=..." >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)

# The stamps make a second `make serve` start at once.
# What the file of hashes leaves out comes with the second command: PyTorch and what it needs.
$(VENV)/installed: $(LOCK) $(HASHED) pyproject.toml | $(VENV)/bin/python
	$(PIP) install --require-hashes --no-deps -r $(HASHED)
	$(PIP) install -c $(LOCK) -e .
	@touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(PIP) install -c $(LOCK) -e '.[dev]'
	@touch $@
