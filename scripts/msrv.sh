#!/usr/bin/env bash
# Compiles the module and the example with the oldest Rust that Cargo.toml allows (rust-version): rustup's toolchain of
# that version if it is installed, else Debian's package, unpacked into .servers/.
# Usage: scripts/msrv.sh   (as 'make msrv' does)
set -euo pipefail
cd "$(dirname "$0")/.."

version=$(sed -nE 's/^rust-version = "(.*)"$/\1/p' Cargo.toml)
toolchain=$(rustup toolchain list 2>/dev/null | grep -oE "^${version//./\\.}(\.[0-9]+)?-[^ ]+" | head -n 1 || true)
if [ -n "$toolchain" ]; then
    RUSTC=$(rustup which --toolchain "$toolchain" rustc)
else
    scripts/servers.sh "rust-$version"
    RUSTC=$PWD/.servers/rust-$version/bin/rustc
fi
export RUSTC
echo "msrv: $("$RUSTC" --version)"
CARGO_TARGET_DIR=target/msrv cargo check --locked --lib --examples
