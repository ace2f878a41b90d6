#!/usr/bin/env bash
# Installs what is missing on this machine to build, run and test RMQ; silent if nothing is.
# Usage: scripts/setup.sh          to build and run: libclang, redis-server, redis-cli
#        scripts/setup.sh test     also what scripts/servers.sh needs: g++, Python's venv
# Uses apt on Debian and Ubuntu (with sudo if needed); elsewhere it lists what to install.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'setup: %s\n' "$*" >&2; }
has() { command -v "$1" >/dev/null 2>&1; }

missing=()
has cargo || missing+=("Rust 1.85 or newer with cargo (rustup, or the packages rustc and cargo)")
has gcc || has cc || missing+=("a C compiler (package gcc)")
has make || missing+=("GNU make (package make)")
if [ ${#missing[@]} -gt 0 ]; then
    say "please install first:"
    printf '  - %s\n' "${missing[@]}" >&2
    exit 1
fi

# The -dev package is required: the bare library lacks the compiler's own headers.
has_libclang() {
    [ -n "${LIBCLANG_PATH:-}" ] && return
    if has dpkg-query; then
        dpkg-query -W -f '${db:Status-Abbrev}\n' 'libclang-*-dev' 2>/dev/null | grep -q '^ii'
    else
        compgen -G '/usr/lib*/libclang.so*' >/dev/null || compgen -G '/usr/lib*/llvm*/lib*/libclang.so*' >/dev/null
    fi
}

packages=()
has_libclang || packages+=(libclang-dev)
has redis-server || packages+=(redis-server)
has redis-cli || packages+=(redis-tools)
if [ "${1:-}" = test ]; then
    has g++ || packages+=(g++)
    if ! has python3; then
        packages+=(python3 python3-venv)
    elif ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
        packages+=(python3-venv)
    fi
fi

install_packages() {
    local sudo=() policy=/usr/sbin/policy-rc.d log
    log=$(mktemp)
    if ! has apt-get; then
        say "no apt-get here. Please install: ${packages[*]} (those are Debian's names; Redis must be 7.0 or newer)"
        exit 1
    fi
    if [ "$(id -u)" -ne 0 ]; then
        if ! has sudo; then
            say "not root, and no sudo. Please run as root: apt-get update && apt-get install ${packages[*]}"
            exit 1
        fi
        sudo=(sudo)
    fi
    say "installing with apt: ${packages[*]} (a minute or so)"
    # RMQ starts its own servers: the redis-server installed here must not run as a service, now or at boot.
    if [[ " ${packages[*]} " == *" redis-server "* ]]; then
        if [ ! -e $policy ]; then
            # shellcheck disable=SC2064
            trap "${sudo[*]} rm -f $policy" EXIT
            printf '#!/bin/sh\nexit 101\n' | "${sudo[@]}" tee $policy >/dev/null
            "${sudo[@]}" chmod +x $policy
        fi
    fi
    "${sudo[@]}" apt-get -qq update >"$log" 2>&1 || say "apt-get update failed; using the existing package lists"
    if ! "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends \
        "${packages[@]}" >>"$log" 2>&1; then
        cat "$log" >&2
        say "apt failed. Please install manually: ${packages[*]}"
        exit 1
    fi
    if [[ " ${packages[*]} " == *" redis-server "* ]] && has systemctl; then
        "${sudo[@]}" systemctl --quiet disable redis-server >/dev/null 2>&1 || true
    fi
    rm -f "$log"
}
[ ${#packages[@]} -eq 0 ] || install_packages

# The module needs Redis 7.0; some distributions have an older one.
version=$(redis-server --version | sed -n 's/.* v=\([0-9]*\)\..*/\1/p')
if [ "${version:-0}" -lt 7 ] && [ ! -e .servers/redis-8 ] && [ ! -e .servers/valkey-9 ]; then
    say "the system's redis-server is older than 7.0; providing a newer one in .servers/"
    scripts/servers.sh redis-8 || scripts/servers.sh valkey-9 ||
        { say "please put a redis-server of version 7.0 or newer on the PATH"; exit 1; }
fi
