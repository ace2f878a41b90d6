# Sourced by the scripts that run tests.
# locate NAME: sets `binaries` and `filter`, the arguments by which cargo test runs what NAME stands for:
#   commands, queue, server, trust   a whole test binary
#   complete                         complete.rs of tests/commands, tests/queue or tests/server
#   trust/model                      tests/trust/model.rs; so the reliability suite runs only when asked for
#   complete::an_unknown_id, watch   tests of commands, queue and server with this in their path
locate() {
    local binary=${1%%/*} module=${1#*/} home
    binaries=(--test commands --test queue --test server) filter=("$1")
    if [ "$1" = "$binary" ]; then
        if [ -d "tests/$1" ] && [ "$1" != common ]; then
            binaries=(--test "$1") filter=()
            return
        fi
        local homes=()
        for home in commands queue server; do
            if [ -e "tests/$home/$1.rs" ]; then homes+=(--test $home); fi
        done
        if [ ${#homes[@]} -gt 0 ]; then binaries=("${homes[@]}") filter=("$1::"); fi
    else
        binaries=(--test "$binary") filter=("$module")
        if [ -e "tests/$binary/$module.rs" ]; then filter=("$module::"); fi
    fi
}
