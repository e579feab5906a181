#!/usr/bin/env bash
# check.sh : style and types, changing nothing. Every tool runs, so that one call shows everything there is to mend.
source "$(dirname "$0")/lib.sh"
cd "$CHECKOUT"

complaints=()
run() {
    echo "+ $*"
    "$@" || complaints+=("$(basename "$1")")
}
export RUFF_CACHE_DIR=$BUILD/ruff MYPY_CACHE_DIR=$BUILD/mypy
mkdir -p "$BUILD"
run "$VENV/bin/ruff" check .
run "$VENV/bin/ruff" format --check .
run "$VENV/bin/mypy"
run shellcheck -x -P SCRIPTDIR scripts/*.sh .ci/run templates/*/hooks/*.sh templates/*/steps/*.sh
[[ ${#complaints[@]} -eq 0 ]] || { echo "complaints of: ${complaints[*]}"; exit 1; }
echo "no complaints"
