# make ask    set up everything in .venv and run the main job: soft queries to three tables
# make test   set up everything and run the tests
# make bench  measure every claim of speed (an hour or two), or one: make bench CLAIM=additive
# make check  lint and types (layers, map and docs are tests)
# make test-gpu  run the contract suites of the kernels on the GPU of this machine
# make bench-gpu  compare calls on the GPU of this machine with other libraries, in less than 8 minutes
# make fuzz   damage saved files in 20,000 ways: no crash, no wrong answer, no error of another library (about ten minutes)
# make kills  kill and interrupt operations on stores, indexes and models at 500 points each (about an hour)
# make test-versions  run the tests from the wheel with the lowest and the newest allowed versions of packages
# make docs   write the site to site/: tutorials, guide, gallery, reference, performance; without a network, in about three minutes of CPU time
# make pyodide  fetch Python for the browser, with which cells of the site's Start pages run; then make docs
# make release-check  build the sdist and the wheel, compare their files with a list, run an example of each face from the wheel
# make mutants  does a test fail when the code is wrong? (about an hour)
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
LONG ?=
CLAIM ?=
SEED ?= 1
QUICK ?=
FAULTS ?= 20000
POINTS ?= 500

.PHONY: ask test test-gpu bench-gpu test-long fuzz kills check mutants bench docs pyodide clean release-check test-versions

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.base: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) -e ".[ask]"
	touch $@

$(VENV)/.dev: $(VENV)/.base
	$(PIP) -e ".[dev]"
	touch $@

ask: $(VENV)/.base
	@sh examples/ask.sh $(BIN)/qkv

# Every process that the tests start would otherwise compile the package anew.
test test-long: export PYTHONDONTWRITEBYTECODE =
# One thread per worker: two workers already use both cores. XLA compiles faster with these settings; test-long uses its defaults.
test: $(VENV)/.dev
	OMP_NUM_THREADS=1 XLA_FLAGS="$$($(BIN)/python -m tests.xla_flags)" $(BIN)/python -m pytest -n 2 --dist worksteal -m "not long"

test-long: $(VENV)/.dev
	OMP_NUM_THREADS=1 HYPOTHESIS_PROFILE=long $(BIN)/python -m pytest -n 2 --dist worksteal

# Without a GPU this says so and fails. TRITON_INTERPRET=0: the programs are compiled.
test-gpu: $(VENV)/.dev
	TRITON_INTERPRET=0 PYTHONPATH=src $(BIN)/python -m tests.gpu

bench-gpu: $(VENV)/.dev
	TRITON_INTERPRET=0 PYTHONPATH=src:. $(BIN)/python -m benchmarks.gpu

# Any other SEED draws other faults; FAULTS=1000 takes half a minute.
fuzz: $(VENV)/.dev
	OMP_NUM_THREADS=1 PYTHONPATH=src $(BIN)/python -m tests.fuzz --seed $(SEED) --faults $(FAULTS)

# Any other SEED draws other points; POINTS=50 takes some minutes.
kills: $(VENV)/.dev
	OMP_NUM_THREADS=1 PYTHONPATH=src $(BIN)/python -m tests.kills --seed $(SEED) --points $(POINTS)

# With every Python of 3.11 to 3.13 on this machine, those of pyenv included: about ten minutes for each pair of a Python
# and its packages. KEEP=folder keeps the environments; PARTS="tests/store tests/cli" runs a part of the tests.
# TORCH=no leaves out PyTorch, where the package index has only builds for GPUs.
PYTHONS ?= $(foreach version,3.11 3.12 3.13,$(shell \
	for python in python$(version) $${PYENV_ROOT:-$$HOME/.pyenv}/versions/$(version).*/bin/python; do \
	$$python -c "import sys; print(sys.executable)" 2>/dev/null && break; done))
WHICH ?= lowest numpy1 newest
PARTS ?= tests
KEEP ?=
TORCH ?=
test-versions: $(VENV)/.dev
	@test -n "$(PYTHONS)" || { echo "PYTHONS must name at least one Python, for example PYTHONS=python3.11"; exit 1; }
	$(foreach python,$(PYTHONS),$(foreach which,$(WHICH),$(BIN)/python -m tests.versions $(which) --python $(python) \
		$(if $(KEEP),--keep $(KEEP)) $(if $(filter no,$(TORCH)),--no-torch) $(PARTS) &&)) true

# With every Python of 3.11 to 3.13 on this machine, a minute or two for each. TORCH=no leaves out PyTorch.
release-check: $(VENV)/.dev
	@test -n "$(PYTHONS)" || { echo "PYTHONS must name at least one Python, for example PYTHONS=python3.11"; exit 1; }
	$(BIN)/python -m tests.release $(filter-out numpy1,$(WHICH)) $(foreach python,$(PYTHONS),--python $(python)) $(if $(filter no,$(TORCH)),,--torch)

# Mutation testing on a seeded sample of 1,500 mutants: about an hour.
mutants: $(VENV)/.dev
	$(BIN)/python -m tests.mutants --seed $(SEED)

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

$(VENV)/.bench: $(VENV)/.dev
	$(PIP) -e ".[dev,bench]"
	touch $@

# make bench, or make bench CLAIM=additive; QUICK=1 for small shapes that only show that it runs.
bench: $(VENV)/.bench
	$(BIN)/python -m benchmarks $(CLAIM) $(if $(QUICK),--quick)
	$(BIN)/python -m benchmarks.page

docs: $(VENV)/.dev
	$(BIN)/python docs/build.py site

pyodide: $(VENV)/.base
	$(BIN)/python docs/fetch_pyodide.py build/pyodide

clean:
	rm -rf $(VENV) site build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
