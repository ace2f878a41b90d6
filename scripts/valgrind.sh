#!/usr/bin/env bash
# Runs tests on a libc-malloc server under valgrind's memcheck, and reads its logs: any invalid access, use of
# uninitialised memory or leak with a frame in librmq.so is a failure. The last line is 'N passed, N failed'.
# Usage: scripts/valgrind.sh [NAME...]    as in 'scripts/test.sh only NAME'; without a name a selection of all kinds
#        SERVER=valkey-9                  a server of scripts/servers.sh that uses libc's malloc
# Everything takes twenty to fifty times as long as usual; RMQ_OPS, RMQ_CALLS and RMQ_CYCLES are lowered to suit.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/locate-tests.sh

server=${SERVER:-valkey-9}
[ $# -gt 0 ] || set -- trust/memory trust/model trust/fuzz reserve timeouts parseerr
export RMQ_OPS=${RMQ_OPS:-1500} RMQ_CALLS=${RMQ_CALLS:-6000} RMQ_LIMITS=${RMQ_LIMITS:-4} RMQ_CYCLES=${RMQ_CYCLES:-20000}
export RMQ_DEADLINE=${RMQ_DEADLINE:-120}

if ! command -v valgrind >/dev/null; then
    if command -v apt-get >/dev/null && [ "$(id -u)" -eq 0 ]; then
        echo "valgrind: installing it with apt" >&2
        apt-get -qq update >/dev/null 2>&1 || true
        apt-get -qq install -y --no-install-recommends valgrind >/dev/null 2>&1
    else
        echo "please install valgrind" >&2
        exit 1
    fi
fi

scripts/servers.sh "$server" peer
[ -n "${RMQ_MODULE:-}" ] || cargo build --release
real=$PWD/.servers/$server/bin/redis-server
"$real" --version | grep -q malloc=libc || { echo "$server does not use libc's malloc" >&2; exit 1; }
work=$PWD/target/valgrind
rm -rf "$work" && mkdir -p "$work/logs" "$work/bin"

# The server's compressor reads its hash table before it writes it, on purpose. ('Possibly lost' is left out:
# the server's strings are pointers into their blocks.)
cat >"$work/server.supp" <<'SUPPRESSIONS'
{
   lzf_hash_table_cond
   Memcheck:Cond
   fun:lzf_compress
}
{
   lzf_hash_table_value
   Memcheck:Value8
   fun:lzf_compress
}
SUPPRESSIONS
# The pid stays: the tests compare it with that of the server that answers.
cat >"$work/bin/redis-server" <<WRAPPER
#!/bin/sh
[ "\$1" != --version ] || exec "$real" --version
exec valgrind --tool=memcheck --quiet --num-callers=24 --leak-check=full --show-leak-kinds=definite,indirect \\
    --child-silent-after-fork=yes --suppressions="$work/server.supp" --log-file="$work/logs/%p.log" "$real" "\$@"
WRAPPER
chmod +x "$work/bin/redis-server"

# A copy of its own: a server whose module's file is written over crashes, and builds may go on beside this.
cp "${RMQ_MODULE:-target/release/librmq.so}" "$work/librmq.so"
export RMQ_SERVER=$work/bin/redis-server RMQ_MODULE=$work/librmq.so
passed=0 failed=0
for name; do
    status=0
    output=$work/${name//\//-}.out
    locate "$name"
    echo "=== valgrind, $server: $name"
    cargo test -q --no-fail-fast "${binaries[@]}" -- --test-threads=2 ${filter[@]+"${filter[@]}"} >"$output" 2>&1 || status=$?
    read -r p f < <(awk '/^test result:/ { p += $4; f += $6 } END { print p + 0, f + 0 }' "$output")
    [ "$status" -eq 0 ] || [ "$f" -gt 0 ] || f=1
    echo "    $p passed, $f failed"
    [ "$f" -eq 0 ] || grep -E '^(test .*FAILED|thread .*panicked|---- )' "$output" | head -20
    passed=$((passed + p))
    failed=$((failed + f))
done

# A block of the log is a finding of the module if one of its frames is the module's.
logs=$(find "$work/logs" -name '*.log' | wc -l)
awk '
    { line = $0; sub(/^==[0-9]+== ?/, "", line) }
    line == "" { if (ours) printf "%s\n", block; block = ""; ours = 0; next }
    { block = block line "\n" }
    /librmq\.so|\(rmq::| rmq::|redis_module/ { ours = 1 }
    END { if (ours) printf "%s\n", block }' "$work"/logs/*.log >"$work/findings.txt"
findings=$(grep -c '^$' "$work/findings.txt" || true)
echo "=== $logs servers ran under memcheck; findings with a frame in the module: $findings"
if [ -s "$work/findings.txt" ]; then
    head -n 80 "$work/findings.txt"
    failed=$((failed + 1))
else
    passed=$((passed + 1))
fi
[ "$logs" -gt 0 ] || { echo "no server ran under valgrind"; failed=$((failed + 1)); }
printf '\n%s passed, %s failed\n' $passed $failed
[ $failed -eq 0 ] && [ $passed -gt 0 ]
