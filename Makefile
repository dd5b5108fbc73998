# Everything from nothing: `make study` and `make test` need Python 3.11, git and make.
PYTHON ?= python3.11
CORES  ?= 2
BIN    := .venv/bin
PORT   ?= 5000
export PATH := $(CURDIR)/$(BIN):$(PATH)
export MLFLOW_DISABLE_TELEMETRY = true
export DVC_NO_ANALYTICS = 1

.PHONY: help study test slow lint bench figures docs ui status clean
.DEFAULT_GOAL := help

help:  ## this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

study: .venv/.ok  ## environment, data, the default study, report; ARGS goes to snakemake
	gpbench unlock
	snakemake --cores $(CORES) $(ARGS)

test: .venv/.ok  ## all tests
	OMP_NUM_THREADS=1 python -m pytest -n $(CORES) --no-loadscope-reorder $(ARGS)

slow: .venv/.ok  ## tests of minutes: accuracy on real data (needs GPBENCH_MIRROR), samplers beside libraries and papers
	OMP_NUM_THREADS=1 python -m pytest -n $(CORES) -m slow -rP tests/evaluation tests/study tests/methods tests/sampling $(ARGS)

lint: .venv/.ok  ## style and one-way imports
	ruff check .
	ruff format --check .
	lint-imports

bench: .venv/.ok  ## timings: steps, loop, DGP-RFF, BSGP, samplers beside GPyTorch and BlackJAX; a study of 2,000 cells
	OMP_NUM_THREADS=1 python bench/bench.py
	OMP_NUM_THREADS=1 python bench/loop.py
	OMP_NUM_THREADS=1 python bench/rff.py
	OMP_NUM_THREADS=1 python bench/sampler.py
	OMP_NUM_THREADS=1 python bench/latent.py
	OMP_NUM_THREADS=1 python bench/study_size.py

figures: .venv/.ok  ## redraw the figures of the default study
	snakemake --cores $(CORES) --forcerun figures --until figures

docs: .venv/.ok  ## what the documentation shows of committed results: tables, figures, scorecard, lists
	gpbench reference > docs/config.md
	python -m gpbench.report documents
	gpbench papers > docs/papers.md

ui: .venv/.ok  ## MLflow at http://127.0.0.1:5000
	MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false mlflow server --host 127.0.0.1 --port $(PORT) --workers 1 \
		--backend-store-uri sqlite:///mlflow.db --artifacts-destination ./mlartifacts

status: .venv/.ok  ## what is running, how far
	gpbench status --watch

clean:  ## remove results and plans; fits stay in store/
	rm -rf results plans runs

.venv/.ok: requirements.lock pyproject.toml
	$(PYTHON) -m venv .venv
	.venv/bin/python -m pip install --disable-pip-version-check -q -r requirements.lock
	.venv/bin/python -m pip install --disable-pip-version-check -q --no-deps --no-build-isolation -e .
	.venv/bin/python -m pip check
	touch $@
