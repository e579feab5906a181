# shellcheck shell=bash disable=SC2034
# Sourced by every script here: where things lie, and how a step is told. No step writes outside the cache folder
# but for the agent's binaries in the checkout and missing system packages.

set -euo pipefail
# The daemons run as users of their own and import from the venv: everything made here is world-readable.
umask 022

CHECKOUT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
if [[ -z ${BELLGLASS_CACHE:-} ]]; then
    if [[ $EUID -eq 0 ]]; then
        BELLGLASS_CACHE=/var/cache/bellglass
    else
        BELLGLASS_CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/bellglass
    fi
fi
export BELLGLASS_CACHE

# Debian's own interpreter, never one from PATH: a python below a 0700 home can't be run by the daemons' users.
PYTHON=/usr/bin/python3
CHECKOUT_ID=$(printf '%s' "$CHECKOUT" | sha256sum | cut -c1-12)
VENV=$BELLGLASS_CACHE/venv-$CHECKOUT_ID
BUILD=$BELLGLASS_CACHE/build/$CHECKOUT_ID
LOGS=$BELLGLASS_CACHE/logs
TEMPLATES=$BELLGLASS_CACHE/templates
AGENT_DIR=$CHECKOUT/src/bellglass/_agent
# A tool of the agent's build only: a requirement of the package would cost every install 80 MB.
ZIG_VERSION=0.14.1
ZIG_VENV=$BELLGLASS_CACHE/tools/zig-$ZIG_VERSION
export ZIG_GLOBAL_CACHE_DIR=$BELLGLASS_CACHE/build/zig ZIG_LOCAL_CACHE_DIR=$BUILD/zig

step() { printf '%-12s %s\n' "$1" "$2"; }

fail() {
    printf '%-12s %s\n' "$1" "$2" >&2
    exit 1
}

# hash_of FILE... : one digest over names and contents.
hash_of() { sha256sum -- "$@" | sha256sum | cut -c1-32; }

# logged NAME COMMAND... : output goes to a log; a failure prints its end and where the rest is.
logged() {
    local name=$1
    shift
    mkdir -p "$LOGS"
    if ! "$@" >"$LOGS/$name.log" 2>&1 </dev/null; then
        tail -n 40 "$LOGS/$name.log" >&2
        printf '%s failed: %s (all of it: %s)\n' "$name" "$*" "$LOGS/$name.log" >&2
        return 1
    fi
}

# one_at_a_time : two make calls at once wait for each other instead of filling one folder together.
one_at_a_time() {
    mkdir -p "$BELLGLASS_CACHE"
    exec 9>"$BELLGLASS_CACHE/.setup.lock"
    flock 9
}
