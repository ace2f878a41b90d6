#!/usr/bin/env bash
# Starts redis-server with the module in the foreground, on loopback, for experiments.
# Usage: [PORT=6379] [RMQ_SERVER=path] scripts/run.sh   (as 'make run' does; the module must be built)
# Nothing is saved; the working directory is the ignored folder .run/.
set -euo pipefail
cd "$(dirname "$0")/.."

port=${PORT:-6379}
module=${RMQ_MODULE:-$PWD/target/release/librmq.so}

fail() { printf 'run: %s\n' "$*" >&2; exit 1; }

# The first server that is new enough: the caller's, the system's, or one that setup.sh provided.
pick_server() {
    local candidate major
    if [ -n "${RMQ_SERVER:-}" ]; then
        echo "$RMQ_SERVER"
        return
    fi
    for candidate in "$(command -v redis-server)" .servers/{redis-8,valkey-9}/bin/redis-server; do
        [ -x "$candidate" ] || continue
        major=$("$candidate" --version | sed -n 's/.* v=\([0-9]*\)\..*/\1/p')
        [ "${major:-0}" -ge 7 ] && echo "$candidate" && return
    done
    return 1
}

if ! [[ $port =~ ^[1-9][0-9]{0,4}$ ]] || [ "$port" -gt 65535 ]; then
    fail "PORT must be a number from 1 to 65535, not '$port'"
fi
[ -f "$module" ] || fail "$module is not built: run 'make build'"
server=$(pick_server) || fail "found no redis-server of version 7.0 or newer: run scripts/setup.sh"
if (: >"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
    fail "port $port is taken, perhaps by another Redis. Choose another: make run PORT=$((port < 65535 ? port + 1 : 6380))"
fi

cli=redis-cli
[ "$port" = 6379 ] || cli="redis-cli -p $port"
cat <<EOF

RMQ on $("$server" --version | sed 's/ sha=.*//'), port $port. Nothing is saved; Ctrl-C ends it.
In another terminal: publish a message, take it, acknowledge it with the receipt, the third line of the reply.

  $cli RMQ.PUBLISH app TO orders order-1 '{"total": 42}'
  $cli RMQ.RESERVE app 30000 BLOCK 2000 FROM urgent orders | tee /tmp/reserved
  $cli RMQ.ACK app order-1 \$(sed -n 3p /tmp/reserved)

EOF
mkdir -p .run
exec "$server" --port "$port" --bind 127.0.0.1 --dir .run --save '' --appendonly no --loadmodule "$module"
