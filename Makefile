# make setup once, then: make demo | test | test-deep | check | bench | docs | clean
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VENV := .venv
PYTHON := $(VENV)/bin/python
STAMP := $(VENV)/.installed
unexport PYTHONDONTWRITEBYTECODE # containers set it; hundreds of test processes would each compile every module again

.PHONY: help setup demo test test-deep check bench docs clean

help:
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(STAMP) ## the environment in .venv, a JDK, the Delta jars and class archives; quick when nothing changed
	@$(PYTHON) -c 'from siltstone.spark.jvm import main; main()' >/dev/null 2>&1 || $(MAKE) --no-print-directory jdk
	@$(PYTHON) -c 'from siltstone.spark.jars import main; main()'
	@$(PYTHON) -c 'from siltstone.cli.class_archives import main; main()'

$(STAMP): pyproject.toml constraints.txt
	@python=""; for candidate in python3.11 python3.12 python3.13 python3; do \
	  if "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then python="$$candidate"; break; fi; \
	done; \
	if [ -z "$$python" ]; then echo "Siltstone needs Python 3.11 or newer; none was found on the PATH. Install one and run make setup again." >&2; exit 1; fi; \
	if [ ! -x $(PYTHON) ]; then "$$python" -m venv $(VENV) || { echo "python -m venv failed; on Debian and Ubuntu install python3-venv." >&2; exit 1; }; fi
	@echo "Installing packages (a few minutes the first time)"
	@$(PYTHON) -m pip install --quiet --disable-pip-version-check -c constraints.txt hatchling editables setuptools wheel # the last two build PySpark, which comes as source
	@$(PYTHON) -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[dev]'
	@touch $(STAMP)

.PHONY: jdk
jdk:
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq openjdk-17-jre-headless >/dev/null; \
	else \
	  echo "Siltstone needs Java 17 or newer for Spark. Install one of these packages and run make setup again:" >&2; \
	  echo "  Debian, Ubuntu: openjdk-17-jre-headless    Fedora, RHEL: java-17-openjdk-headless    macOS: temurin@17" >&2; \
	  exit 1; \
	fi

demo: setup ## a short tour: upsert, read, fold, erase
	@$(VENV)/bin/silt demo

test: setup ## every test but the long ones
	@$(PYTHON) -m pytest -q -m "not deep" -n 2 --durations=15

test-deep: setup ## all tests, about 90 minutes: those of make test with line coverage, then the long ones
	@rm -f .coverage .coverage.*
	@$(PYTHON) -m coverage run -m pytest -q -m "not deep" -n 2
	@$(PYTHON) -m pytest -q -m deep -n 2 --durations=15
	@$(PYTHON) -m tests.support.coverage_report

check: $(STAMP) ## lint, format, types, layers
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/mypy
	@$(VENV)/bin/lint-imports

bench: setup ## measure against the peers
	@$(PYTHON) -m bench

docs: setup ## run what the documentation promises
	@$(PYTHON) -m pytest -q tests/docs

clean: ## remove the environment and everything that was built
	rm -rf $(VENV) build dist .coverage .coverage.* .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache spark-warehouse
	find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} +
