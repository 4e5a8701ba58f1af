# The two commands: `make train` runs the default job, `make test` checks everything.
# Each makes the virtual environment and installs what it needs by itself.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.installed
ARGS ?=
JOBS ?= 2

.PHONY: train test test-cpus test-slow lint format types docs check-docs notebooks tensorboard clean help

help:            ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

train: $(READY)  ## train the default model; overrides: make train ARGS="data.n_train=500 seed=3"
	$(BIN)/python train.py $(ARGS)

test: $(READY) lint types  ## lint, types and all fast tests
	$(BIN)/python -m pytest -n $(JOBS) -m "not slow"

# The numerical core, which must not depend on how a CPU rounds.
CORE := $(addprefix tests/test_,rules.py ratios.py linalg.py kernels.py features.py embedding.py \
	objectives.py transition.py units.py inputs.py)

test-cpus: $(READY)  ## the core's tests as other CPUs round: other instructions, one and two threads
	ATEN_CPU_CAPABILITY=default MKL_CBWR=COMPATIBLE OMP_NUM_THREADS=2 OMP_WAIT_POLICY=PASSIVE \
		$(BIN)/python -m pytest -m "not slow" $(CORE)
	ATEN_CPU_CAPABILITY=avx2 MKL_CBWR=AVX2 OMP_NUM_THREADS=1 \
		$(BIN)/python -m pytest -n $(JOBS) -m "not slow" $(CORE)

test-slow: $(READY)  ## statistical checks and whole experiments
	$(BIN)/python -m pytest -m slow

lint: $(READY)   ## ruff: lint and format check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(READY) ## ruff: fix and format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(READY)  ## mypy (strict on kbr.core)
	$(BIN)/mypy

docs: $(VENV)/.docs  ## the site, into build/site; warnings are errors
	$(BIN)/python docs/tools/assets.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

check-docs: docs $(VENV)/.check  ## every page of the site in Chromium
	$(BIN)/python docs/tools/check_site.py

notebooks: $(VENV)/.notebooks  ## run the notebooks in place
	$(BIN)/python docs/tools/notebooks.py

tensorboard: $(READY)  ## watch the runs
	$(BIN)/tensorboard --logdir outputs

clean:           ## remove the virtual environment and caches (runs are kept)
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "kbr needs Python 3.11 or newer; set PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev,maze,tune]"
	@touch $@

$(VENV)/.docs $(VENV)/.check $(VENV)/.notebooks: $(VENV)/.%: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[$*]"
	@touch $@
