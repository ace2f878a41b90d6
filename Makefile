# 'make help' lists the targets. Most of them call scripts/.

PORT ?= 6379
SERVERS ?= redis-7.0 redis-8 valkey-9 valkey-8
SERVER ?=

export PORT

.DEFAULT_GOAL := help
.PHONY: help setup build run demo test matrix trust lint deny msrv bench clean distclean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

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

bench: ## Compare with the Lua scripts (SERVER=redis-8, QUICK=1 for a short run)
	@scripts/setup.sh test
	@scripts/servers.sh $(or $(SERVER),redis-8) peer
	cargo build --release
	SERVER=$(or $(SERVER),redis-8) QUICK=$(QUICK) RMQ_MODULE=$(CURDIR)/target/release/librmq.so \
	    RMQ_SERVER=$(CURDIR)/.servers/$(or $(SERVER),redis-8)/bin/redis-server \
	    cargo bench --bench side_by_side

clean: ## Remove build results and the folder of 'make run'
	cargo clean
	rm -rf .run

distclean: clean ## Also remove the servers in .servers/
	rm -rf .servers
