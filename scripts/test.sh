#!/usr/bin/env bash
# test.sh [--long] : all stages, one line each with its seconds; a failed stage shows its end and the others still
# run. The last line counts every test: pytest's by its own report, any other stage as one. --long adds the tests that
# take minutes, a long fuzz and a soak of SOAK_MINUTES.
source "$(dirname "$0")/lib.sh"
cd "$CHECKOUT"

long=0
[[ ${1:-} != --long ]] || long=1
fuzz_s=$((long ? 900 : 60))
# What pytest selects, joined with more by a stage.
quick="not slow"
((!long)) || quick="slow or not slow"

[[ $EUID -eq 0 ]] || fail test "sandboxes need root; run: sudo make test"
reports=$BUILD/reports
rm -rf "$reports"
mkdir -p "$reports" "$LOGS"
# One stage's processes at a time read this; a second run in the same checkout would delete its reports.
exec 8>"$BUILD/.test.lock"
flock --nonblock 8 || fail test "another make test runs in this checkout"
plain_passed=0
plain_failed=0

# stage NAME COMMAND... : runs it with its output in a log.
stage() {
    local name=$1 started=$SECONDS took state=ok
    shift
    "$@" >"$LOGS/test-$name.log" 2>&1 </dev/null 8>&- || state=FAILED
    took=$((SECONDS - started))
    if [[ $state == FAILED ]]; then
        tail -n 150 "$LOGS/test-$name.log"
        failed_stages+=("$name")
    fi
    printf '%-12s %-6s %4d s   %s\n' "$name" "$state" "$took" "$(closing_line "$LOGS/test-$name.log")"
    [[ $state == ok ]]
}

closing_line() { grep -v '^[[:space:]]*$' "$1" | tail -n 1 | sed -E 's/^=+ //; s/ =+$//' | cut -c1-120; }

plain_stage() {
    if stage "$@"; then plain_passed=$((plain_passed + 1)); else plain_failed=$((plain_failed + 1)); fi
}

# pytest_stage NAME MARKERS FOLDERS AND OPTIONS... : no test at all is a failure, by pytest's own exit code 5.
pytest_stage() {
    local name=$1 markers=$2
    shift 2
    stage "$name" "$VENV/bin/python" -m pytest --junit-xml="$reports/$name.xml" -o cache_dir="$BUILD/pytest" \
        -o junit_family=xunit2 -m "($quick) and ($markers)" "$@" || true
}

# ended PID LOG : how what runs beside other stages has ended, with its output.
ended() {
    local state=0
    wait "$1" || state=$?
    cat "$2"
    return "$state"
}

failed_stages=()
export HYPOTHESIS_STORAGE_DIRECTORY=$BUILD/hypothesis
guest_make=(make --no-print-directory -C guest BUILD="$BUILD/guest" ZIG="$ZIG_VENV/bin/python -m ziglang")
# For a fixed time and on one core, while the first stages leave another: its line comes when it is waited for.
"${guest_make[@]}" fuzz SECONDS="$fuzz_s" >"$LOGS/fuzz.out" 2>&1 </dev/null 8>&- &
fuzz_pid=$!
trap 'kill "$fuzz_pid" 2>/dev/null' EXIT
plain_stage style scripts/check.sh
plain_stage guest "${guest_make[@]}" test
# Four workers on two cores: half of a test is waiting for a timeout, a restart or a disk.
pytest_stage unit "not alone" tests/unit tests/style -n 4
plain_stage fuzz ended "$fuzz_pid" "$LOGS/fuzz.out"
trap - EXIT
stacks=(tests/functional tests/drivers tests/security)
# Each worker has an installation of its own, and a file of tests stays with one.
pytest_stage functional "not alone" "${stacks[@]}" -n 3 --dist loadfile --no-loadscope-reorder
pytest_stage compat "not alone" tests/compat -n 3 --maxschedchunk 1
# Only their files: to import all the others would take as long as they do.
mapfile -t files_alone < <(grep -rl --include='test_*.py' 'mark\.alone' "${stacks[@]}")
pytest_stage alone alone "${files_alone[@]}"
((!long)) || plain_stage soak "$VENV/bin/python" -m benchmarks.soak

"$VENV/bin/python" scripts/count_tests.py "$reports" "$plain_passed" "$plain_failed" "${failed_stages[@]}"
