#!/usr/bin/env bash
# Starts a server of its own with the module, shows the commands at work with redis-cli, and ends the server.
# Usage: [RMQ_SERVER=path] scripts/demo.sh   (as 'make demo' does; the module must be built)
set -euo pipefail
cd "$(dirname "$0")/.."

fail() { printf 'demo: %s\n' "$*" >&2; exit 1; }

log=$(mktemp)
server=
cleanup() {
    if [ -n "$server" ]; then
        kill "$server" 2>/dev/null || true
        wait "$server" 2>/dev/null || true
        server=
    fi
    rm -f "$log"
}
trap cleanup EXIT

redis_cli=$(command -v redis-cli || compgen -G '.servers/*/bin/redis-cli' | head -n 1)
[ -n "$redis_cli" ] || fail "found no redis-cli: run scripts/setup.sh"
cli() { "$redis_cli" -h 127.0.0.1 -p "$port" --no-raw "$@"; }

# scripts/run.sh finds the server, and becomes it. A port that is taken is not ours: try another one.
for _ in {1..20}; do
    port=$((15000 + RANDOM % 17000))
    PORT=$port scripts/run.sh >"$log" 2>&1 &
    server=$!
    for _ in {1..100}; do
        kill -0 "$server" 2>/dev/null || break
        cli INFO server 2>/dev/null | grep -q "^process_id:$server.\?$" && break 2
        sleep 0.1
    done
    grep -q 'is taken\|already in use' "$log" || { cat "$log" >&2; fail 'the server did not start'; }
    server=
done
[ -n "$server" ] || fail 'found no free port'

# Runs a command and shows it as redis-cli does. The reply is left in $reply; an error that was not announced by
# 'refused' ends the demo.
show() {
    local word line=
    for word; do
        [[ $word =~ ^[A-Za-z0-9:._-]+$ ]] || word="'$word'"
        line+="$word "
    done
    printf '\n> %s\n' "${line% }"
    reply=$(cli "$@")
    printf '%s\n' "$reply"
    if [[ $reply == '(error)'* ]]; then
        [ -n "${expect_error:-}" ] || fail 'that was not to be expected'
    elif [ -n "${expect_error:-}" ]; then
        fail 'that was to be refused'
    fi
}
refused() { expect_error=yes show "$@"; }
say() { echo; printf '# %s\n' "$@"; }
# The lease is the third element of a delivery.
lease_of_reply() { sed -n 's/^ *3) "\(.*\)"$/\1/p' <<<"$reply"; }

payloads=app:payloads pending=app:orders:pending processing=app:orders:processing
expires=app:expires delays=app:delays

say "A server of its own, on port $port: $(cli INFO server | sed -n 's/^\(redis\|valkey\)_version:/\1 /p' | tr -d '\r' | tail -n 1)"

say 'One message: published, taken under a lease of 30 seconds, acknowledged.'
show RMQ.PUBLISH $payloads $pending order-1 '{"total": 42}'
show RMQ.RESERVE $pending $processing $payloads $expires 30000
lease=$(lease_of_reply)
show RMQ.ACK $payloads $processing $expires order-1 "$lease"

say 'It is gone. A lease that is not current settles nothing.'
show KEYS '*'
show RMQ.ACK $payloads $processing $expires order-1 "$lease"

say 'A failure: the message comes back after a delay (0 ms here), as its second delivery.'
show RMQ.PUBLISH $payloads $pending order-2 '{"total": 7}'
show RMQ.RESERVE $pending $processing $payloads $expires 30000
lease=$(lease_of_reply)
show RMQ.NACK $payloads $delays $expires $processing order-2 "$lease" 0
show RMQ.DELAYTICK $delays $payloads 100
show RMQ.RESERVE $pending $processing $payloads $expires 30000
lease=$(lease_of_reply)

say 'Given up: a dead letter, until somebody sends it back to its queue.'
show RMQ.DEADLETTER app:dlq:data app:dlq $expires $payloads $processing order-2 '{"total": 7}' LEASE "$lease"
show RMQ.REDRIVE app:dlq app:dlq:data $payloads 100

say 'Now the five commands that replace the scripts, over the same keys.' \
    'A worker takes a message by plain commands, and dies: its deadline has passed.'
show LMOVE $pending $processing RIGHT LEFT
show ZADD $expires 1 order-2

say 'RMQ.TIMEOUTS finds it; with CLAIM it stays in processing until it is settled.'
show RMQ.TIMEOUTS $expires $payloads '*' 100 CLAIM 30000

say 'RMQ.RETRY puts it into delay_tasks, RMQ.DELAYTICK back into pending.'
show RMQ.RETRY $payloads $delays $expires $processing order-2 '{"total": 7}' 0
show RMQ.DELAYTICK $delays $payloads 100

say 'The next worker succeeds: RMQ.COMPLETE.'
show LMOVE $pending $processing RIGHT LEFT
show RMQ.COMPLETE $payloads $processing $expires order-2

say 'A retry that comes too late does not bring it back to life.'
refused RMQ.RETRY $payloads $delays $expires $processing order-2 '{"total": 7}' 0

say 'A payload that nobody can parse: RMQ.PARSEERR keeps it for 7 days, with the newest 1000 of its kind.'
show RMQ.PUBLISH $payloads $pending order-3 '{"total": '
show LMOVE $pending $processing RIGHT LEFT
show RMQ.PARSEERR app:errors:data app:errors $processing $expires $payloads order-3 '{"total": ' orders \
    'EOF while parsing a value' 1700000000000 7 1000
show HGET app:errors:data order-3

say 'What the commands did.'
show INFO rmq

cleanup
say "That was all; the server is gone. 'make run' starts one to try things on."
