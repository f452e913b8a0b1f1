# Every target does its own set-up: `make run` and `make test` work on a fresh clone.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
UV := $(BIN)/uv --quiet

# Tests start Fairway hundreds of times. Its modules are compiled once, even where the user's Python does not keep that.
export PYTHONDONTWRITEBYTECODE :=

LOCK := requirements.lock
# Pythons and machines that the lock is made for.
PYTHONS := 3.11 3.12 3.13 3.14
MACHINES := x86_64 aarch64
# `make lock UPGRADE=` keeps the versions that still fit.
UPGRADE ?= --upgrade

# What runs at both ends of the version ranges, and the tools for it, whose versions do not matter there.
ENDS_TESTS ?= tests/golden tests/unit/solvers tests/unit/core tests/unit/simulator \
	tests/unit/cli/test_cli_errors.py tests/unit/api/test_api_words.py
# The test client of the lowest Starlette takes httpx, that of the newest httpx2.
ENDS_TOOLS := pytest pytest-xdist hypothesis httpx httpx2
# Libraries may warn there of what other versions of them do. A warning of NumPy's is a mistake of ours.
ENDS_WARNINGS := -W default -W error::RuntimeWarning

.PHONY: setup lock run test test-processes test-others test-web test-cluster test-all reproduce-quick mutations check soak ends end-lowest end-newest docs bench format clean
.DEFAULT_GOAL := run

setup: $(STAMP)

$(STAMP): pyproject.toml $(LOCK)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Fairway needs Python 3.11 or newer; set PYTHON=/path/to/python3.11" >&2; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) \
		|| { echo "cannot make a virtual environment; on Debian: apt-get install python3-venv" >&2; exit 2; }
	$(PIP) install --require-hashes --only-binary :all: -r $(LOCK)
	$(PIP) install --no-deps --no-build-isolation -e .
	@$(BIN)/python -m fairway.testing.warm_up
	@touch $@

# The newest versions that pyproject.toml allows, with the hashes of their files, for every Python and machine. The
# second command looks whether there are files for each of them.
lock: setup
	$(UV) pip compile pyproject.toml --extra fast --extra dev --group setup --output-file $(LOCK) $(UPGRADE) \
		--universal --python-version $(firstword $(PYTHONS)) --only-binary :all: --generate-hashes \
		--no-emit-index-url --custom-compile-command "make lock"
	@for python in $(PYTHONS); do for machine in $(MACHINES); do \
		$(UV) pip install --dry-run --target $(VENV)/none --require-hashes --only-binary :all: -r $(LOCK) \
			--python-version $$python --python-platform $$machine-manylinux_2_28 \
			|| { echo "the lock does not work for Python $$python on $$machine" >&2; exit 1; }; \
	done; done

run: setup
	$(BIN)/fairway demo --live

# Tests with real processes wait more than they compute. They run beside the others, and come first on the CPU.
test: setup
	@$(MAKE) --no-print-directory --jobs 2 test-processes test-others

test-processes:
	$(BIN)/python -m pytest -n 3 tests/runtime

test-others:
	nice -n 5 $(BIN)/python -m pytest -n 3 --ignore tests/runtime --ignore tests/reference --ignore tests/cluster \
		--ignore tests/web/page

# The page in a real browser, under a live scheduler, if Playwright and Chromium are installed.
test-web: setup
	$(BIN)/python -m pytest -n 2 tests/web/page

# A real Ray over several machines that this one is cut into, if Ray is installed. One Ray serves all tests, one by one.
test-cluster: setup
	$(BIN)/python -m pytest tests/cluster

# `make test` tries some of the cases of these tests. This tries all of them that do not take minutes, and compares with
# published figures where they are (`tests/reference`).
test-all: setup
	FAIRWAY_SEEDS=many $(BIN)/python -m pytest -n auto tests/contract tests/golden tests/reference tests/simulation

# The published figures again, in small: the whole takes a quarter of an hour. Data that is not there is named.
DATA ?= $(wildcard ../shared/data)
reproduce-quick: setup
	$(BIN)/fairway reproduce --quick $(if $(DATA),--data $(DATA))

# Stories of the real scheduler in a simulated world, with faults; each that fails prints the command that repeats it.
# Then every test with all its cases.
SEEDS ?= 10000
FIRST ?= 0
soak: setup
	$(BIN)/python -m fairway.testing.daemon_world --seeds $(SEEDS) --first $(FIRST)
	$(BIN)/python -m fairway.testing.daemon_world --seeds $(SEEDS) --first $(FIRST) --nodes
	FAIRWAY_SEEDS=all $(BIN)/python -m pytest -n auto --ignore tests/cluster --ignore tests/web/page
	$(BIN)/python -m pytest tests/web/page
	$(BIN)/python -m pytest tests/cluster

# Thirty small mistakes, each in a copy of the code: which of them do the tests notice? NAMES are parts of their names.
NAMES ?=
mutations: setup
	$(BIN)/python tests/mutations/mutate.py $(NAMES)

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/unit/test_layers.py

# Fairway as users install it, without the lock: with the lowest versions of what it asks for, and with the newest.
ends:
	@$(MAKE) --no-print-directory end-lowest
	@$(MAKE) --no-print-directory end-newest

end-lowest: RESOLUTION := lowest-direct
end-newest: RESOLUTION := highest
end-lowest end-newest: end-%: setup
	@rm -rf $(VENV)-$*
	@$(UV) venv --python $(BIN)/python $(VENV)-$*
	@$(PIP) wheel --no-deps --no-build-isolation --wheel-dir $(VENV)-$*/wheel .
	$(UV) pip install --python $(VENV)-$* --resolution $(RESOLUTION) --only-binary :all: -r pyproject.toml --extra fast
	@$(UV) pip install --python $(VENV)-$* $(ENDS_TOOLS)
	@$(UV) pip install --python $(VENV)-$* --no-deps $(VENV)-$*/wheel/*.whl
	@echo "$*:" $$($(BIN)/uv --quiet pip freeze --python $(VENV)-$*)
	@$(VENV)-$*/bin/python -m fairway.testing.warm_up
	$(VENV)-$*/bin/python -m pytest -n auto -m 'not slow' $(ENDS_WARNINGS) $(ENDS_TESTS)

# The tables of the pages, from published runs and headlines that are run again.
docs: setup
	$(BIN)/fairway reproduce $(if $(DATA),--data $(DATA)) --docs docs

bench: setup
	$(BIN)/python benchmarks/simulator.py

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) $(VENV)-lowest $(VENV)-newest out .pytest_cache .mypy_cache .ruff_cache .hypothesis
