#!/usr/bin/env bash
# Counts instructions per message with callgrind and compares with docs/bench/instructions.csv; the last line is
# 'N passed, N failed'. A workload of RMQ that takes more than 3 % more than there is a failure.
# Usage: scripts/instructions.sh             UPDATE=1 writes the file anew; FULL=1 counts beside a million messages
# The counts do not depend on the processor: valgrind shows every program the same one (with AVX2; without, the C library
# takes other paths and the counts are others). They do depend on the versions of rustc and of the C library.
set -euo pipefail
cd "$(dirname "$0")/.."

if ! command -v valgrind >/dev/null; then
    if command -v apt-get >/dev/null && [ "$(id -u)" -eq 0 ]; then
        echo "instructions: installing valgrind with apt" >&2
        apt-get -qq update >/dev/null 2>&1 || true
        apt-get -qq install -y --no-install-recommends valgrind >/dev/null 2>&1
    else
        echo "please install valgrind" >&2
        exit 1
    fi
fi
server=redis-8
scripts/servers.sh $server peer
cargo build --release
work=$PWD/target/instructions
rm -rf "$work" && mkdir -p "$work"
real=$PWD/.servers/$server/bin/redis-server
# The pid stays that of the server. Instrumentation is switched on for what is measured only.
cat >"$work/redis-server" <<WRAPPER
#!/bin/sh
[ "\$1" != --version ] || exec "$real" --version
exec valgrind --tool=callgrind --instr-atstart=no --callgrind-out-file="$work/callgrind.%p" "$real" "\$@"
WRAPPER
chmod +x "$work/redis-server"
# A copy of its own: a server whose module's file is written over crashes.
cp target/release/librmq.so "$work/librmq.so"
# The client may be slow: it is compiled as the tests are, and shares their dependencies.
RMQ_MODULE=$work/librmq.so RMQ_SERVER=$work/redis-server cargo bench -q --profile dev --bench cost -- instructions
