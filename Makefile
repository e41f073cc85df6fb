# Two commands do nearly everything on a machine with Python >= 3.11 and make:
#   make demo   sets up, runs the main job and writes something to look at into demo/
#   make test   sets up, then lint, types, import layers and tests
# and make docs builds the site.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

# JAX keeps compiled programs here between runs, so that tests need not compile them again.
export JAX_COMPILATION_CACHE_DIR := $(CURDIR)/.cache/jax
export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS := 0.02
export JAX_PLATFORMS ?= cpu
# Programs in tests run for milliseconds but would compile for seconds.
pytest: export JAX_DISABLE_MOST_OPTIMIZATIONS := 1
pytest: export XLA_FLAGS := --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1
# One thread for each of the two test processes: oracles on busy cores are twenty times slower with more.
pytest: export OMP_NUM_THREADS := 1

.PHONY: setup demo test lint types layers pytest test-slow docs bench-painn bench-mace bench-md lock clean
.DELETE_ON_ERROR:

setup: $(READY)

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else \
		f"huefield needs Python 3.11 or newer, but $(PYTHON) is {sys.version.split()[0]}: try  make PYTHON=python3.12 $(MAKECMDGOALS)")'
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

demo: $(READY)
	$(BIN)/huefield toy --out demo/toy
	$(BIN)/huefield demo --out demo

test: lint types layers pytest

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy
	MYPYPATH=benchmarks:benchmarks/painn $(BIN)/mypy benchmarks/*.py

layers: $(READY)
	$(BIN)/lint-imports

# Long files first, in the order given, so that both processes end at the same time.
pytest: $(READY)
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --durations=15 --durations-min=5 -m "not slow" \
		tests/training tests/potentials tests/noise tests/ase tests/reproduce tests/predict tests/cli tests/evaluation tests

test-slow: $(READY)
	$(BIN)/python -m pytest -m slow

# The site, in docs/_build/html. Warnings and broken links are errors; nothing is fetched.
docs: $(READY)
	$(BIN)/python -m sphinx -q -n -W --keep-going -d docs/_build/doctrees docs docs/_build/html
	$(BIN)/python docs/_ext/check_links.py docs/_build/html

# PaiNN beside SchNetPack's, which gets an environment of its own; on an otherwise idle machine.
bench-painn: $(READY)
	$(BIN)/python benchmarks/painn

# MACE beside mace-torch, which gets an environment of its own; on an otherwise idle machine.
bench-mace: $(READY)
	$(BIN)/python benchmarks/mace

# Dynamics through ASE, beside SchNetPack's; on an otherwise idle machine.
bench-md: $(READY)
	$(BIN)/python benchmarks/md

# Resolve pyproject.toml anew into exact versions that hold for every supported Python.
lock: $(READY)
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile --universal --fork-strategy fewest --python-version 3.11 --extra dev --extra docs --no-header --no-annotate \
		--no-emit-index-url --no-emit-find-links --upgrade --output-file requirements.lock pyproject.toml

clean:
	rm -rf $(VENV) .cache .pytest_cache .mypy_cache .ruff_cache docs/_build demo
