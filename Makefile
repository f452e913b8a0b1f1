# Every target does its own set-up: `make run` and `make test` work on a fresh clone.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: setup run test check bench format clean
.DEFAULT_GOAL := run

setup: $(STAMP)

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Fairway needs Python 3.11 or newer; set PYTHON=/path/to/python3.11" >&2; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) \
		|| { echo "cannot make a virtual environment; on Debian: apt-get install python3-venv" >&2; exit 2; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[fast,dev]'
	@$(BIN)/python -c 'from fairway.core import kernels; kernels.warm_up()'
	@touch $@

run: setup
	$(BIN)/fairway demo --live

test: setup
	$(BIN)/python -m pytest -n auto --ignore tests/runtime
	# Tests with real processes wait more than they compute.
	$(BIN)/python -m pytest -n 4 tests/runtime

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/unit/test_layers.py

bench: setup
	$(BIN)/python benchmarks/simulator.py

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) out .pytest_cache .mypy_cache .ruff_cache .hypothesis
