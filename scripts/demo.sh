#!/usr/bin/env bash
# Starts a temporary server with the module, plays the life of some messages with redis-cli, and stops the server.
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

# scripts/run.sh finds the server and execs it. If the port is in use, try another.
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

# Runs a command and prints it with its reply, which is left in $reply. An error ends the demo.
show() {
    local word line=
    for word; do
        [[ $word =~ ^[A-Za-z0-9:._-]+$ ]] || word="'$word'"
        line+="$word "
    done
    printf '\n> %s\n' "${line% }"
    reply=$(cli "$@")
    printf '%s\n' "$reply"
    [[ $reply != '(error)'* ]] || fail 'unexpected error'
}
say() { echo; printf '# %s\n' "$@"; }
# Takes one message by priority, waiting up to 5 seconds, and leaves its receipt, the third element, in $receipt.
reserve() {
    show RMQ.RESERVE app "$1" BLOCK 5000 FROM urgent orders
    receipt=$(sed -n 's/^ *3) "\(.*\)"$/\1/p' <<<"$reply")
    [ -n "$receipt" ] || fail 'expected a message'
}

say "A temporary server on port $port: $(cli INFO server | sed -n 's/^\(redis\|valkey\)_version:/\1 /p' | tr -d '\r' | tail -n 1)"

say 'One message: published, taken under a lease of 30 seconds, acknowledged with the receipt.'
show RMQ.PUBLISH app TO orders order-1 '{"total": 42}'
reserve 30000
show RMQ.ACK app order-1 "$receipt"

say 'It is gone; the namespace only remembers that there is such a queue.'
show KEYS '*'

say 'A delay: the worker waits, and the server wakes it half a second later. Nothing else runs.'
show RMQ.PUBLISH app DELAY 500 TO orders order-2 '{"total": 7}'
reserve 30000

say 'It fails. The policy: three attempts, the first delay 300 ms, doubled each time.'
show RMQ.POLICY app orders ATTEMPTS 3 BACKOFF 300 60000
show RMQ.NACK app order-2 "$receipt" ERROR 'no stock'

say 'The second attempt, with a lease of 300 ms. Its worker dies; the message comes back by itself.'
reserve 300
late=$receipt
reserve 30000
say 'The dead worker wakes up: its receipt is worth nothing.'
show RMQ.ACK app order-2 "$late"

say 'The third attempt fails, too: a dead letter, which keeps the reason and the last error.'
show RMQ.NACK app order-2 "$receipt" ERROR 'still no stock'
show HGET app:dlq:data order-2:death

say 'The cause is mended: back to its queue, attempts from 0.'
show RMQ.REDRIVE app COUNT 100

say 'Priorities: a message of the queue that is named first comes first.'
show RMQ.PUBLISH app TO urgent order-3 '{"total": 1000}'
reserve 30000
show RMQ.ACK app order-3 "$receipt"
reserve 30000

say 'Long work: a heartbeat moves the deadline and leaves the receipt as it is.'
show RMQ.EXTEND app 60000 order-2 "$receipt"
show RMQ.ACK app order-2 "$receipt"

say 'Published once, also when the message is done by now.'
show RMQ.PUBLISH app ONCE 60000 TO orders order-4 four
show RMQ.PUBLISH app ONCE 60000 TO orders order-4 four
reserve 30000
show RMQ.ACK app order-4 "$receipt"
show RMQ.PUBLISH app ONCE 60000 TO orders order-4 four

say 'The counters.'
show INFO rmq

python=.servers/python/bin/python
if [ -x $python ]; then
    say 'A look at the queues: two wait, one is in work, one is due later, one was rejected. examples/top.py without --once' \
        'shows them live.'
    show RMQ.PUBLISH app TO orders order-5 five order-6 six order-7 seven order-8 eight
    reserve 30000
    show RMQ.NACK app order-5 "$receipt" DEAD ERROR 'no such customer'
    reserve 30000
    show RMQ.PUBLISH app DELAY 60000 TO orders order-9 nine
    echo
    REDIS_URL=redis://127.0.0.1:$port $python examples/top.py --once app
fi

cleanup
say "Done; the server is stopped. 'make run' starts one to experiment with."
