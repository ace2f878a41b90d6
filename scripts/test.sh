#!/usr/bin/env bash
# Builds the module, then runs the tests; the last line is their sum: 'N passed, N failed'.
# Usage: scripts/test.sh all SERVER               unit tests, and the integration tests on one server
#        scripts/test.sh matrix SERVER...         the integration tests on each server
#        scripts/test.sh only NAME... -- SERVER...    the integration tests tests/NAME.rs on each server
# SERVER is a name of scripts/servers.sh. The reliability suite, tests/trust_*.rs, runs only when named.
# The tests find the module in RMQ_MODULE, the server's binary in RMQ_SERVER; logs are in target/test-logs/.
set -euo pipefail
cd "$(dirname "$0")/.."

mode=${1:-all}
shift || true
tests=()
if [ "$mode" = only ]; then
    while [ $# -gt 0 ] && [ "$1" != -- ]; do
        tests+=(--test "$1")
        shift
    done
    shift || true
else
    for file in tests/*.rs; do
        name=$(basename "$file" .rs)
        if [ -e "$file" ] && [[ $name != trust_* ]]; then
            tests+=(--test "$name")
        fi
    done
fi
[ $# -gt 0 ] || set -- redis-7.0

passed=0 failed=0
logs=target/test-logs
mkdir -p $logs

# Runs cargo test with the arguments after $1, a label, and adds its results to the sum.
run() {
    local label=$1 status=0 log counts
    shift
    log=$logs/${label// /-}.log
    printf '\n=== %s\n' "$label"
    cargo test --no-fail-fast "$@" -- --test-threads=2 2>&1 | tee "$log" || status=$?
    read -ra counts < <(awk '/^test result:/ { p += $4; f += $6; i += $8 } END { print p + 0, f + 0, i + 0 }' "$log")
    # A test binary that crashed has no result line.
    [ $status -eq 0 ] || [ "${counts[1]}" -gt 0 ] || counts[1]=1
    echo "=== $label: ${counts[0]} passed, ${counts[1]} failed, ${counts[2]} ignored"
    passed=$((passed + counts[0]))
    failed=$((failed + counts[1]))
}

scripts/servers.sh redis-6 peer python "$@"
cargo build --release
export RMQ_MODULE=$PWD/target/release/librmq.so

if [ "$mode" = all ]; then
    run 'unit tests' --lib
fi
if [ ${#tests[@]} -gt 0 ]; then
    cargo test --no-run "${tests[@]}"
    for server; do
        export RMQ_SERVER=$PWD/.servers/$server/bin/redis-server
        run "$server $(cat ".servers/$server/version")" "${tests[@]}"
    done
fi

printf '\n%s passed, %s failed\n' $passed $failed
[ $failed -eq 0 ] && [ $passed -gt 0 ]
