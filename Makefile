# Thin names over ordinary commands. `make demo` and `make test` set up all they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export HF_HUB_DISABLE_TELEMETRY := 1
export TOKENIZERS_PARALLELISM := false
# Steps on CPU take and give back gigabytes; in huge pages that is a sixth less processor time.
export GLIBC_TUNABLES := glibc.malloc.hugetlb=1
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: setup demo test test-slow lint bench assets clean

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.core: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) --upgrade "pip>=25.1,<27"
	$(PIP) --constraint constraints.txt --editable ".[data,plots]"
	touch $@

$(VENV)/.test: $(VENV)/.core
	$(PIP) --constraint constraints.txt --editable ".[parity]" --group test
	touch $@

# Types are checked against the real packages: without them pyright takes our own bridges/torch
# for torch.
$(VENV)/.lint: $(VENV)/.test
	$(PIP) --constraint constraints.txt --group lint
	touch $@

setup: $(VENV)/.core        ## everything but torch

assets: $(VENV)/.core       ## the checkpoint and the plays, checked by sha256
	$(BIN)/python -m bridges.assets

demo: assets                ## fine-tune SmolLM2-135M on Shakespeare; no torch
	$(BIN)/python -m bridges.demo

test: $(VENV)/.test assets  ## the fast tests, torch parity included
	JAX_PLATFORMS=cpu HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -n 2 --dist loadfile -m "not slow" $(PYTEST)

test-slow: $(VENV)/.test assets  ## the long ones, one at a time
	JAX_PLATFORMS=cpu HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -m slow $(PYTEST)

lint: $(VENV)/.lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/pyright

bench: $(VENV)/.test        ## time ratios against transformers; run with nothing else going on
	for file in forward train_step decode load_safetensors bert_base embeddings pipelines vision fit_overhead trackers metrics; do \
	  $(BIN)/python benchmarks/$$file.py || exit 1; done

clean:
	rm -rf $(VENV) runs
