"""The cases by name, in the order of the table; each module has `measure(bench) -> list[Row]` and is imported on use.

Tests use them as generous bounds: `measure(Bench(stack, folder, quick=True))`, then `row.missed(slack=5)`.
"""

from __future__ import annotations

CASES = {
    "exec": "benchmarks.cases.exec_true",
    "first-exec": "benchmarks.cases.first_exec",
    "run": "benchmarks.cases.run_once",
    "pool-claims": "benchmarks.cases.pool_claims",
    "pool-run": "benchmarks.cases.pool_run",
    "delete": "benchmarks.cases.delete",
    "transfer": "benchmarks.cases.transfer",
    "parallel": "benchmarks.cases.parallel",
    "flood": "benchmarks.cases.frame_flood",
    "transfer-4gib": "benchmarks.cases.transfer_4gib",
    "output": "benchmarks.cases.output",
    "e2b": "benchmarks.cases.e2b",
    "run-code": "benchmarks.cases.run_code",
    "preview": "benchmarks.cases.preview",
    "idle": "benchmarks.cases.idle",
    "recovery": "benchmarks.cases.recovery",
    "egress": "benchmarks.cases.egress_relay",
    "egress-beside": "benchmarks.cases.egress_beside",
    "egress-policy": "benchmarks.cases.egress_policy",
    "network-api": "benchmarks.cases.network_api",
}
