# make run     set up .venv and run the bundled example
# make test    set up what tests need and run them (ARGS="-k gate" picks some; EXTRAS=dev,engine brings torch along)
# make lint    style
# make bench   the project's own speed
# make gate    hold the example workloads against baselines/ (make gate-update REASON="…" renews them)
# make docs    the documentation site, in build/site; a broken link fails
# make notebooks  run experiments/notebooks in full and keep what they show, renew the figures of docs/
# make kernels compile the Triton kernels for GPUs that need not be here, and renew docs/kernels.md

PYTHON ?= python3
VENV ?= .venv
ARGS ?=
REASON ?=
EXTRAS ?= dev
EXAMPLE ?= workloads/examples/chat-h100.yaml

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# Beforehand, so that the first run starts as quickly as the second, also where Python may not write byte code itself.
COMPILE := $(BIN)/python -m compileall -q twinserve.py workloads sim backends reports experiments
comma := ,
CORE := $(VENV)/.core-installed
DEV := $(VENV)/.$(subst $(comma),-,$(EXTRAS))-installed

.PHONY: run test lint bench gate gate-update docs notebooks kernels
.DELETE_ON_ERROR:

run: $(CORE)
	$(BIN)/bench run $(EXAMPLE) $(ARGS)

# One thread: of tiny models more only wait for each other, for many times the processor time where cores are shared.
test: $(DEV)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(ARGS)

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

bench: $(DEV)
	$(BIN)/python -m pytest tests/benchmarks --benchmark-only --benchmark-columns=min,median,rounds $(ARGS)

# A baseline is that of the example of the same name; a sweep is held at its base point. Every one is looked at, then it fails.
gate: $(CORE)
	@status=0; for base in baselines/*.json; do name=$$(basename $$base .json); echo "gate: $$name"; \
	$(BIN)/bench gate workloads/examples/$$name.yaml --baseline $$base --set sweep=null $(ARGS) || status=1; done; exit $$status

gate-update: export REASON := $(value REASON)
gate-update: $(CORE)
	@test -n "$$REASON" || { echo 'say why the figures moved: make gate-update REASON="…"'; exit 1; }
	@for base in baselines/*.json; do name=$$(basename $$base .json); \
	$(BIN)/bench gate workloads/examples/$$name.yaml --baseline $$base --set sweep=null --update --reason "$$REASON" $(ARGS) \
	|| exit 1; done

docs: $(DEV)
	$(BIN)/python -m experiments.handbook build
	$(BIN)/zensical build --strict --clean -f build/mkdocs.yml
	@echo "open build/site/index.html"

notebooks: $(DEV)
	$(BIN)/python -m experiments.claims.notebooks $(ARGS)
	$(BIN)/python -m experiments.handbook.figures

kernels:
	@$(BIN)/python -c 'import torch, triton' 2>/dev/null || { echo "torch and triton are needed: $(BIN)/pip install -e '.[engine]'"; exit 1; }
	$(BIN)/python -m backends.triton.compile_ahead --out docs/kernels.md $(ARGS)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed; make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)

$(CORE): pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) install -q -c constraints.txt -e .
	@$(COMPILE)
	@touch $@

$(DEV): pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) install -q -c constraints.txt -e '.[$(EXTRAS)]'
	@$(COMPILE)
	@touch $@ $(CORE)
