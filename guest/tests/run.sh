#!/bin/sh
# Run the unit tests natively and as aarch64 code, then both agents end to end. A line per test, and a line of sums.
set -u
build=$1
out=$2
qemu=$3
here=$(dirname "$0")
log=$build/test.log
: >"$log"
status=0

section() {
    echo "== $1"
    shift
    # the part's own sum line is folded into ours
    "$@" >"$build/part.log" 2>&1 || { status=1; echo "FAIL the program itself: $*" >>"$build/part.log"; }
    grep -vE '^[0-9]+ passed, [0-9]+ failed$' "$build/part.log" | tee -a "$log"
}

section "unit tests, x86_64, address and undefined behaviour sanitizers" "$build/unit"
section "unit tests, aarch64 under qemu" "$qemu" "$build/unit-aarch64"
section "agent, x86_64, sanitizers" python3 "$here/smoke.py" "$build/agent-sanitized"
section "agent, aarch64 under qemu" python3 "$here/smoke.py" "$qemu" "$out/bellglass-agent-aarch64"
passed=$(grep -c '^ok  ' "$log")
failed=$(grep -c '^FAIL' "$log")
echo "$passed passed, $failed failed"
[ "$status" -eq 0 ] && [ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
