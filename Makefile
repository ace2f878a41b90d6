# 'make help' lists the targets. Most of them call scripts/.

PORT ?= 6379
SERVERS ?= redis-7.0 redis-8 valkey-9 valkey-8
SERVER ?=

export PORT

.DEFAULT_GOAL := help
.PHONY: help setup build run demo test matrix trust lint deny msrv bench instructions clean distclean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Install what is missing: libclang, redis-server (the other targets do it too)
	@scripts/setup.sh

build: setup ## Build the module: target/release/librmq.so
	cargo build --release

run: build ## Start redis-server with the module, in the foreground (PORT=6379)
	@scripts/run.sh

demo: build ## Run the commands with redis-cli on a temporary server
	@scripts/servers.sh python
	@scripts/demo.sh

test: ## Run every unit and integration test (SERVER=redis-7.0)
	@scripts/setup.sh test
	@scripts/test.sh all $(or $(SERVER),redis-7.0)

matrix: ## Run the integration tests on every server (SERVERS="redis-7.0 redis-8 valkey-9 valkey-8")
	@scripts/setup.sh test
	@scripts/test.sh matrix $(SERVERS)

trust: ## Run the reliability suite: crashes, replicas, soak (LONG=1: 30 minutes)
	@scripts/setup.sh test
	@LONG=$(LONG) scripts/trust.sh

lint: setup ## Check format and clippy, warnings as errors
	cargo fmt --check
	cargo clippy --all-targets -- -D warnings

deny: ## Check licences, duplicate versions and sources of the dependencies (deny.toml)
	@scripts/setup.sh test
	@scripts/deny.py

msrv: setup ## Compile with the oldest Rust allowed (rust-version in Cargo.toml)
	@scripts/msrv.sh

bench: ## Measure beside mx-rmq, Streams, a bare list and BullMQ; writes docs/performance.md, docs/bench/
	@scripts/setup.sh test
	@scripts/servers.sh redis-8 peer bullmq
	cargo build --release
	RMQ_MODULE=$(CURDIR)/target/release/librmq.so RMQ_SERVER=$(CURDIR)/.servers/redis-8/bin/redis-server \
	    cargo bench --bench cost -- time
	@UPDATE=1 FULL=1 scripts/instructions.sh

instructions: ## Count instructions by callgrind; fails if 3 % above docs/bench/instructions.csv (UPDATE=1 writes it)
	@scripts/setup.sh test
	@scripts/instructions.sh

clean: ## Remove build results and the folder of 'make run'
	cargo clean
	rm -rf .run

distclean: clean ## Also remove the servers in .servers/
	rm -rf .servers
