# Everything a person or CI runs. Each target does all the set-up it needs and is cheap to repeat; caches lie in
# BELLGLASS_CACHE (/var/cache/bellglass for root, ~/.cache/bellglass otherwise).

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-print-directory
VENV := $(shell source scripts/lib.sh; printf '%s' "$$VENV")

.NOTPARALLEL:
.PHONY: help as-root setup setup-test setup-run agent template template-interpreter demo test test-long test-compat bench check clean venv-path

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 22

setup: ## system packages that are missing, and the venv
	@scripts/setup.sh dev

setup-test: ## the same, and the browser, nginx, Caddy and the WebSocket suite of the tests
	@scripts/setup.sh test

# Before minutes of set-up that would end at the first mount.
as-root:
	@[[ $$EUID -eq 0 ]] || { echo "sandboxes need root; run: sudo make $(MAKECMDGOALS)" >&2; exit 1; }

setup-run:
	@scripts/setup.sh run

agent: setup-run ## the guest agent, for x86_64 and aarch64
	@scripts/agent.sh

template: as-root setup-run ## the base template (root)
	@scripts/template.sh base

template-interpreter: as-root setup-run agent ## the template with kernels of Python, JavaScript and bash (root)
	@scripts/template.sh interpreter

demo: as-root setup-run agent template ## a sandbox does a job through the SDK, with times (root)
	@$(VENV)/bin/python examples/demo.py

test: as-root setup-test agent template template-interpreter ## every test, one line per stage (root)
	@scripts/test.sh

test-long: as-root setup-test agent template template-interpreter ## the same with what takes minutes, a long fuzz and a soak of 30 minutes (SOAK_MINUTES)
	@scripts/test.sh --long

test-compat: as-root setup-test agent template ## the clients of other products against our versions of their APIs (root)
	@$(VENV)/bin/python -m pytest tests/compat

bench: as-root setup agent template template-interpreter ## the speed table, peers side by side (root)
	@$(VENV)/bin/python -m benchmarks

check: setup ## style and types only
	@scripts/check.sh

clean: ## remove what all of this made, caches included
	@scripts/clean.sh

venv-path: ## where the venv is
	@printf '%s\n' '$(VENV)'
