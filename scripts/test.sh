#!/usr/bin/env bash
# Builds the module, then runs the tests; the last line is their sum: 'N passed, N failed'.
# Usage: scripts/test.sh all SERVER                   unit tests, and the integration tests on one server
#        scripts/test.sh matrix SERVER...             the integration tests on each server
#        scripts/test.sh only NAME... -- SERVER...    some of them on each server: a file such as complete or cluster, a
#                                                     part of a test's name, or trust/model of the reliability suite,
#                                                     which runs only when asked for
# SERVER is a name of scripts/servers.sh; without one it is redis-7.0. Tests wait for servers most of the time, so that
# four threads suit two cores; THREADS=1 runs one test at a time.
# The tests find the module in RMQ_MODULE, the server's binary in RMQ_SERVER; logs are in target/test-logs/.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/locate-tests.sh

mode=${1:-all}
shift || true
names=()
if [ "$mode" = only ]; then
    while [ $# -gt 0 ] && [ "$1" != -- ]; do
        names+=("$1")
        shift
    done
    shift || true
    [ ${#names[@]} -gt 0 ] || { echo "usage: scripts/test.sh only NAME... -- SERVER..." >&2; exit 2; }
fi
[ $# -gt 0 ] || set -- redis-7.0

passed=0 failed=0
logs=target/test-logs
mkdir -p $logs

# run LABEL [CARGO'S ARGUMENTS...] [-- FILTER]: runs cargo test and adds its results to the sum.
run() {
    local label=$1 status=0 log counts arguments=()
    shift
    while [ $# -gt 0 ] && [ "$1" != -- ]; do
        arguments+=("$1")
        shift
    done
    shift || true
    log=$logs/$(tr -c 'a-zA-Z0-9.\n' '-' <<<"$label").log
    printf '\n=== %s\n' "$label"
    cargo test --no-fail-fast "${arguments[@]}" -- --test-threads="${THREADS:-4}" "$@" 2>&1 | tee "$log" || status=$?
    read -ra counts < <(awk '/^test result:/ { p += $4; f += $6; i += $8 } END { print p + 0, f + 0, i + 0 }' "$log")
    # A test binary that crashed has no result line.
    [ $status -eq 0 ] || [ "${counts[1]}" -gt 0 ] || counts[1]=1
    if [ $((counts[0] + counts[1] + counts[2])) -eq 0 ]; then echo "no test has such a name" && counts[1]=1; fi
    echo "=== $label: ${counts[0]} passed, ${counts[1]} failed, ${counts[2]} ignored"
    passed=$((passed + counts[0]))
    failed=$((failed + counts[1]))
}

scripts/servers.sh redis-6 peer python node go "$@"
cargo build --release
export RMQ_MODULE=$PWD/target/release/librmq.so

if [ "$mode" = all ]; then
    run 'unit tests' --lib
fi
for server; do
    export RMQ_SERVER=$PWD/.servers/$server/bin/redis-server
    title="$server $(cat ".servers/$server/version")"
    [ "$mode" = only ] || run "$title" --test commands --test queue --test server
    for name in ${names[@]+"${names[@]}"}; do
        locate "$name"
        run "$title $name" "${binaries[@]}" -- ${filter[@]+"${filter[@]}"}
    done
done

printf '\n%s passed, %s failed\n' $passed $failed
[ $failed -eq 0 ] && [ $passed -gt 0 ]
