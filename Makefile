# Every target sets itself up in .venv/; nothing but Python 3.11 or newer, git and make is needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PYTEST := --numprocesses 2 --dist loadfile --no-loadscope-reorder

.PHONY: demo test test-all lint bench clean

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	mkdir -p $(VENV)/typing && ln -sfn ../.. $(VENV)/typing/empathy_judge  # pyright cannot follow an editable install
	touch $@

demo: $(READY)
	$(BIN)/empathy-judge demo --out demo

# Without the marker `long`: with those the whole would pass twelve minutes on two cores
test: $(READY)
	$(BIN)/python -m pytest $(PYTEST) -m "not long"

test-all: $(READY)
	$(BIN)/python -m pytest $(PYTEST)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

bench: $(READY)
	$(BIN)/python benchmarks/training.py --rounds 3 --steps 2
	$(BIN)/python benchmarks/growth.py --pairs 1000 10000 --seconds --rounds 3
	$(BIN)/python benchmarks/bootstrap.py
	$(BIN)/python benchmarks/loading.py

clean:
	rm -rf $(VENV) demo build *.egg-info
