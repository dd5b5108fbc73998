# `make study` and `make test` do everything from nothing; they need Python 3.11, git and make.
PYTHON ?= python3.11
CORES  ?= 2
BIN    := .venv/bin
PORT   ?= 5000
MINUTES ?= 10
SEED   ?= 0
export PATH := $(CURDIR)/$(BIN):$(PATH)
export MLFLOW_DISABLE_TELEMETRY = true
export DVC_NO_ANALYTICS = 1
export NO_MKDOCS_2_WARNING = 1

.PHONY: help study test cluster-test bucket-test gpu slow faults lint bench peers figures docs tour site site-test ui status clean
.DEFAULT_GOAL := help

help:  ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

study: .venv/.ok  ## run the default study and write its report; ARGS is passed to snakemake
	gpbench unlock
	snakemake --cores $(CORES) $(ARGS)

test: .venv/.ok  ## run all tests but the slow ones; ARGS is passed to pytest
	OMP_NUM_THREADS=1 python -m pytest -n $(CORES) --no-loadscope-reorder $(ARGS)

cluster-test: .venv/.ok  ## run a study on a Slurm of two nodes that is built here (needs root, slurm-wlm and munge)
	OMP_NUM_THREADS=1 python -m pytest tests/cluster/cluster.py $(ARGS)

bucket-test: .venv/.ok  ## run a study on two machines that share an S3 bucket alone (MOTO=PATH of the program moto_server)
	OMP_NUM_THREADS=1 MOTO=$(MOTO) python -m pytest tests/cluster/bucket.py $(ARGS)

gpu: .venv/.ok  ## run the contracts of all methods on this machine's GPU, beside its CPU
	OMP_NUM_THREADS=1 python -m pytest -n $(CORES) --dist worksteal tests/conformance/test_gpu.py $(ARGS)

slow: .venv/.ok  ## run the slow tests: accuracy on real data, large raw files (both need GPBENCH_MIRROR), samplers against libraries
	OMP_NUM_THREADS=1 python -m pytest -n $(CORES) -m slow -rP $(ARGS)

faults: .venv/.ok  ## kill, damage, fill and starve a smoke study for MINUTES, by SEED, and report what was found
	python tests/faults/storm.py --minutes $(MINUTES) --seed $(SEED)

lint: .venv/.ok  ## check style, types, the direction of imports and the workflow
	ruff check .
	ruff format --check .
	lint-imports
	python -m mypy
	python -m snakefmt --check Snakefile workflows/rules
	snakemake --lint

bench: .venv/.ok  ## time steps, loops and samplers beside peers (GPflow after `make peers`), and a study of 2,000 cells
	OMP_NUM_THREADS=1 python bench/steps.py
	OMP_NUM_THREADS=1 python bench/batches.py
	OMP_NUM_THREADS=1 python bench/loop.py
	OMP_NUM_THREADS=1 python bench/rff.py
	OMP_NUM_THREADS=1 python bench/sampler.py
	OMP_NUM_THREADS=1 python bench/latent.py
	OMP_NUM_THREADS=1 python bench/stride.py
	OMP_NUM_THREADS=1 python bench/study_size.py

peers: .peers/.ok  ## install GPflow and GPflux (1.5 GB) in an environment of their own, for `make bench`

figures: .venv/.ok  ## redraw the figures of the default study
	snakemake --cores $(CORES) --forcerun figures --until figures

docs: .venv/.ok  ## regenerate the parts of the documentation that are made from code and committed results
	gpbench reference > docs/.config.md && mv docs/.config.md docs/config.md  # else a kill or an error leaves it empty
	python -m gpbench.report documents
	gpbench papers > docs/.papers.md && mv docs/.papers.md docs/papers.md
	python docs/architecture.py

tour: .venv/.site  ## run the notebook docs/tour.ipynb; build/tour.ipynb has its outputs
	OMP_NUM_THREADS=1 python docs/website/notebook.py build/tour.ipynb

site: tour  ## build the site of documents, methods, data sets and results: open site/index.html
	python -m mkdocs build --strict --quiet
	python docs/website/links.py site

site-test: site .browser/.ok  ## open the site in Chromium: errors, keys, contrast, widths, accessibility
	.browser/bin/python -m pytest -q -c /dev/null --rootdir docs/website docs/website/browser.py $(ARGS)

ui: .venv/.ok  ## open MLflow at http://127.0.0.1:5000 (PORT=... for another port)
	MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false mlflow server --host 127.0.0.1 --port $(PORT) --workers 1 \
		--backend-store-uri sqlite:///mlflow.db --artifacts-destination ./mlartifacts

status: .venv/.ok  ## watch running fits and their progress
	gpbench status --watch

clean:  ## remove results, plans and logs; finished fits stay in store/
	rm -rf results plans runs logs

.venv/.ok: requirements.lock pyproject.toml
	$(PYTHON) -m venv .venv
	.venv/bin/python -m pip install --disable-pip-version-check -q -r requirements.lock
	.venv/bin/python -m pip install --disable-pip-version-check -q --no-deps --no-build-isolation -e .
	.venv/bin/python -m pip check
	touch $@

.venv/.site: .venv/.ok docs/website/site.txt
	.venv/bin/python -m pip install --disable-pip-version-check -q -r docs/website/site.txt
	.venv/bin/python -m pip check
	touch $@

.browser/.ok: docs/website/browser.txt
	$(PYTHON) -m venv .browser
	.browser/bin/python -m pip install --disable-pip-version-check -q -r docs/website/browser.txt
	touch $@

.peers/.ok: bench/peers.txt
	$(PYTHON) -m venv .peers
	.peers/bin/python -m pip install --disable-pip-version-check -q -r bench/peers.txt
	.peers/bin/python -m pip check
	touch $@
