#!/bin/sh
# Run both fuzz targets for SECONDS in all, with the kept corpus as seed; new inputs stay in BUILD.
# A line per target with executions and coverage; the first crash ends with its input's path and status 1.
set -eu
build=$1
seconds=$2
here=$(dirname "$0")
failed=0
for target in protocol tar; do
    mkdir -p "$build/corpus-$target"
    log=$build/fuzz_$target.log
    if ! "$build/fuzz_$target" -max_total_time=$(((seconds + 1) / 2)) -max_len=16384 -timeout=10 -rss_limit_mb=1024 \
        -print_final_stats=1 -artifact_prefix="$build/crash-$target-" \
        "$build/corpus-$target" "$here/corpus/$target" >"$log" 2>&1; then
        tail -n 40 "$log"
        failed=1
    fi
    executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log" | tail -n 1)
    coverage=$(sed -n 's/.* cov: \([0-9]*\) ft: \([0-9]*\).*/\1 edges, \2 features/p' "$log" | tail -n 1)
    echo "fuzz $target: ${executions:-0} executions, ${coverage:-no coverage}, $(find "$here/corpus/$target" -type f | wc -l) seeds"
    [ -n "$executions" ] && [ "$executions" -gt 0 ] || failed=1
done
exit $failed
