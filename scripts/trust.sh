#!/usr/bin/env bash
# The reliability suite, with progress; the last line is 'N passed, N failed'. docs/reliability.md says what it proves.
# Usage: scripts/trust.sh            everything on redis-7.0, a shorter round on the other servers, a part under valgrind
#        TRUST=ci scripts/trust.sh   smaller numbers and no valgrind, for continuous integration
#        LONG=1 scripts/trust.sh     rounds with fresh seeds for 30 minutes (MINUTES=30), on one server after the other
# RMQ_SEED chooses the seed. Each size can be given: RMQ_OPS, RMQ_CALLS, RMQ_KILLS, RMQ_SECONDS, RMQ_FAILOVERS,
# RMQ_RELOADS, RMQ_MIGRATIONS, RMQ_CYCLES, RMQ_LIMITS, RMQ_MESSAGES, RMQ_RESTARTS.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/locate-tests.sh

all=(trust/model trust/fuzz trust/crash trust/waiters trust/replication trust/cluster trust/memory trust/load)
# What each server of the matrix has to pass.
everywhere=(trust/model trust/fuzz trust/crash trust/waiters trust/replication)
# Redis 8.6 routes commands by other rules than the others, so slots move there, too: about 35 s.
on_redis_8=(trust/cluster)
# What 'make matrix' runs too: continuous integration does, so it leaves them out here.
shared=(differential replication acl loading)
main=redis-7.0
others=(redis-8 valkey-9 valkey-8)
# One Valkey is enough for continuous integration.
if [ "${TRUST:-}" = ci ]; then others=(redis-8 valkey-9); fi
passed=0 failed=0 failures=()
logs=target/test-logs
mkdir -p $logs
started=$SECONDS

# sizes NAME=VALUE...: each unless the environment has it already.
given=$(env | sed -n 's/^\(RMQ_[A-Z]*\)=.*/\1/p')
sizes() {
    local size
    for size; do
        grep -qx "${size%%=*}" <<<"$given" || export "RMQ_${size#RMQ_}"
    done
}
full() {
    sizes RMQ_OPS=100000 RMQ_CALLS=1000000 RMQ_KILLS=50 RMQ_SECONDS=15 RMQ_FAILOVERS=6 RMQ_RELOADS=20 RMQ_MIGRATIONS=12 \
        RMQ_CYCLES=1000000 RMQ_LIMITS=15 RMQ_MESSAGES=1000000 RMQ_RESTARTS=20
}
short() {
    sizes RMQ_OPS=20000 RMQ_CALLS=100000 RMQ_KILLS=15 RMQ_SECONDS=5 RMQ_FAILOVERS=4 RMQ_RELOADS=12 RMQ_MIGRATIONS=8 \
        RMQ_CYCLES=200000 RMQ_LIMITS=10 RMQ_MESSAGES=300000 RMQ_RESTARTS=10
}
ci() {
    sizes RMQ_OPS=20000 RMQ_CALLS=60000 RMQ_KILLS=20 RMQ_SECONDS=4 RMQ_FAILOVERS=3 RMQ_RELOADS=8 RMQ_MIGRATIONS=4 \
        RMQ_CYCLES=60000 RMQ_LIMITS=5 RMQ_MESSAGES=200000 RMQ_RESTARTS=5
}
ci_others() {
    sizes RMQ_OPS=5000 RMQ_CALLS=20000 RMQ_KILLS=12 RMQ_SECONDS=3 RMQ_FAILOVERS=2 RMQ_RELOADS=4 RMQ_RESTARTS=3 \
        RMQ_MIGRATIONS=2
}

# run SERVER NAME: runs a file of tests, shows its output line by line, and adds its results to the sum.
run() {
    local server=$1 name=$2 begun=$SECONDS threads=1 log p f
    log=$logs/trust-$server-${name//\//-}.log
    printf '\n=== %s on %s, seed %s (%s s so far)\n' "$name" "$server" "${RMQ_SEED:-24301}" $((SECONDS - started))
    # These do one thing after the other, so that two of them fill two cores.
    case $name in trust/model | trust/fuzz | trust/waiters) threads=2 ;; esac
    export RMQ_SERVER=$PWD/.servers/$server/bin/redis-server
    locate "$name"
    cargo test --no-fail-fast "${binaries[@]}" -- --nocapture --test-threads="$threads" "${filter[@]}" 2>&1 | tee "$log" |
        grep --line-buffered -vE '^ +[0-9]+: |^ +at |^[0-9]+:[A-Z] |^$|^running |^ +(Compiling|Finished|Running|Blocking) ' || true
    read -r p f < <(awk '/^test result:/ { p += $4; f += $6 } END { print p + 0, f + 0 }' "$log")
    # A test binary that crashed has no result line.
    grep -q '^test result:' "$log" || f=1
    echo "=== $name on $server: $p passed, $f failed, $((SECONDS - begun)) s"
    if [ "$f" -gt 0 ]; then failures+=("$name on $server with RMQ_SEED=${RMQ_SEED:-24301}, see $log"); fi
    passed=$((passed + p))
    failed=$((failed + f))
}

# Invalid accesses and leaks, with sizes of its own: everything is much slower there.
under_valgrind() {
    local begun=$SECONDS log=$logs/trust-valgrind.log p=0 f=0
    printf '\n=== valgrind (%s s so far)\n' $((SECONDS - started))
    env -u RMQ_OPS -u RMQ_CALLS -u RMQ_CYCLES -u RMQ_LIMITS scripts/valgrind.sh trust/memory trust/fuzz 2>&1 | tee "$log" || true
    read -r p f < <(sed -nE 's/^([0-9]+) passed, ([0-9]+) failed$/\1 \2/p' "$log" | tail -n 1) || f=1
    echo "=== valgrind: $p passed, $f failed, $((SECONDS - begun)) s"
    if [ "$f" -gt 0 ]; then failures+=("valgrind, see $log"); fi
    passed=$((passed + p))
    failed=$((failed + f))
}

finish() {
    printf '\n%s s in all\n' $((SECONDS - started))
    local failure
    for failure in ${failures[@]+"${failures[@]}"}; do echo "failed: $failure"; done
    echo "$passed passed, $failed failed"
    [ $failed -eq 0 ] && [ $passed -gt 0 ]
}

scripts/servers.sh peer python $main "${others[@]}"
cargo build --release
# A copy of its own: a server whose module's file is written over crashes, and builds may go on beside this.
mkdir -p target/trust
cp --remove-destination target/release/librmq.so target/trust/librmq.so
export RMQ_MODULE=$PWD/target/trust/librmq.so
if [ "${TRUST:-}" = ci ] || [ -n "${LONG:-}" ]; then shared=(); fi
cargo test --no-run --test commands --test queue --test server --test trust

if [ -n "${LONG:-}" ]; then
    end=$((SECONDS + ${MINUTES:-30} * 60))
    round=0
    while [ $SECONDS -lt $end ]; do
        round=$((round + 1))
        export RMQ_SEED=$((RANDOM * 32768 + RANDOM))
        printf '\n##### round %s, seed %s, %s minutes left\n' $round $RMQ_SEED $(((end - SECONDS) / 60))
        short
        servers=("$main" "${others[@]}")
        server=${servers[$((round % ${#servers[@]}))]}
        for name in "${all[@]}"; do
            [ $SECONDS -lt $end ] || break
            run "$server" "$name"
        done
    done
    finish
    exit
fi

if [ "${TRUST:-}" = ci ]; then ci; else full; fi
for name in "${all[@]}" ${shared[@]+"${shared[@]}"}; do run $main "$name"; done
if [ "${TRUST:-}" = ci ]; then ci_others; else short; fi
for server in "${others[@]}"; do
    more=()
    if [ "$server" = redis-8 ]; then more=("${on_redis_8[@]}"); fi
    for name in "${everywhere[@]}" ${more[@]+"${more[@]}"} ${shared[@]+"${shared[@]}"}; do run "$server" "$name"; done
done
[ "${TRUST:-}" = ci ] || under_valgrind
finish
