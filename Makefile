# Targets for people and for .ci/run. `make help` lists them.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

CARGO ?= cargo
# Where cargo puts binaries, also when CARGO_TARGET_DIR says so.
TARGET := $(or $(CARGO_TARGET_DIR),target)
DEMO_ARGS ?=
BENCH_ARGS ?=

.PHONY: help build demo test lint test-engines bench decision

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## The binary as the tests use it
	$(CARGO) build --locked -p maitred

demo: ## Build, then play conversations through four simulated engines under two policies
	$(CARGO) build --release --locked -p maitred
	$(TARGET)/release/maitred demo $(DEMO_ARGS)

lint: ## Formatting and lints of every crate
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings

test: lint ## Lints, then every test of the workspace
	@if $(CARGO) nextest --version >/dev/null 2>&1; then \
	  $(CARGO) nextest run --workspace --locked; \
	  $(CARGO) test --workspace --locked --doc --quiet; \
	else \
	  $(CARGO) test --workspace --locked; \
	fi
	@echo "maitred: formatting, lints and all tests passed"

test-engines: ## Short conversations on real llama.cpp and vLLM replicas; installs what it needs
	$(CARGO) build --release --locked -p maitred
	tests/engines/run.sh

bench: ## CPU, latency and memory beside nginx and a direct connection, with ratios and targets
	@command -v nginx >/dev/null || test -x /usr/sbin/nginx \
	  || { command -v apt-get >/dev/null && apt-get install -y --no-install-recommends nginx-light >/dev/null 2>&1; } \
	  || echo "nginx is not installed and could not be: ratios to it will be skipped"
	$(CARGO) build --release --locked -p maitred -p maitred-bench
	$(TARGET)/release/maitred-bench $(BENCH_ARGS)

decision: ## Time of one placement decision alone (criterion)
	$(CARGO) bench --locked -p maitred-core --bench decision
