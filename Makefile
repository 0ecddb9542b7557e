# Every target sets itself up in .venv/; nothing but Python 3.11 or newer, git and make is needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
BASE := $(VENV)/.base
READY := $(VENV)/.ready
# uv, where there is one, downloads in parallel
INSTALL := $(if $(shell command -v uv),uv pip install --python $(VENV),$(BIN)/python -m pip install) --quiet \
	--constraint constraints.txt --editable
# Three for two cores: some tests wait for servers and other processes
PYTEST := --numprocesses 3 --dist loadfile --no-loadscope-reorder

# Images of containers often set it: then each of the processes that tests start would compile the package anew
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo nano test test-all test-gpu lint docs bench bench-gpu clean

# What the commands of the README need
$(BASE): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) '.[api,serve]'
	touch $@

$(READY): $(BASE)
	$(INSTALL) '.[dev]'
	mkdir -p $(VENV)/typing && ln -sfn ../.. $(VENV)/typing/empathy_judge  # pyright cannot follow an editable install
	touch $@

demo: $(BASE)
	$(BIN)/empathy-judge demo --out demo

# The nano backbone, in three and a half hours (one thread, two for the corpora); killed and called again, it goes on
# and ends in the same bytes. Its teacher is fetched by hash and compared with CTranslate2
EMPATHY_JUDGE_REAL_DATA ?= ../shared/data
nano: $(READY)
	$(BIN)/python benchmarks/real_ear.py "$(EMPATHY_JUDGE_REAL_DATA)" --work build/ear --ears base --sets
	$(BIN)/python checkpoints/nano/make/pretrain.py --out checkpoints/nano --work build/nano_work \
		--recordings "$(EMPATHY_JUDGE_REAL_DATA)" --teacher build/ear/base/hub

# On the CPU, also where there is a GPU: that rounds otherwise
test test-all: export CUDA_VISIBLE_DEVICES =

# Without the marker `long`: with those the whole would pass twelve minutes on two cores
test: $(READY)
	$(BIN)/python -m pytest $(PYTEST) -m "not long"

test-all: $(READY)
	$(BIN)/python -m pytest $(PYTEST)

# On a machine without a GPU, EMPATHY_JUDGE_TEST_DEVICE=cpu runs the same on its CPU
test-gpu: $(READY)
	$(BIN)/python -m pytest -m gpu -rs --durations 20

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

# The libraries are installed apart: no test needs them
$(VENV)/.docs: $(READY)
	$(INSTALL) '.[docs]'
	touch $@

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench: $(READY)
	$(BIN)/python benchmarks/cpu.py train --shapes nano --rounds 3 --steps 2
	$(BIN)/python benchmarks/cpu.py score --rounds 3
	$(BIN)/python benchmarks/cpu.py bootstrap
	$(BIN)/python benchmarks/cpu.py load

# Ten minutes of one GPU; each result is written at once
bench-gpu: $(READY)
	$(BIN)/python benchmarks/gpu.py --out benchmarks/results/gpu

clean:
	rm -rf $(VENV) demo build *.egg-info
