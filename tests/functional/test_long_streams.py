"""The field's own measure: twelve minutes with a line a minute, eleven minutes of silence, defaults as they are."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest

from bellglass import ExecResult, Sandbox
from bellglass.testing.proxy import CuttingProxy


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_twelve_minutes_behind_proxies(stack: Any, new_box: Any) -> None:
    box = new_box(lifetime="30m")

    def wait(url: str, execution_id: str) -> ExecResult:
        with closing(Sandbox.connect(box.id, api_url=url, api_key=stack.api_key)) as other:
            return other.execution(execution_id).wait()

    chatty = box.start("for i in $(seq 12); do echo $i; sleep 60; done; exit 3")
    silent = box.start("sleep 660; echo end; exit 4")
    with (
        CuttingProxy.before(stack.api_url, idle_s=60) as idle,
        CuttingProxy.before(stack.api_url, life_s=290) as old,
        ThreadPoolExecutor(4) as pool,
    ):
        waits = {
            (name, url): pool.submit(wait, url, execution.id)
            for name, execution in (("chatty", chatty), ("silent", silent))
            for url in (idle.url, old.url)
        }
        results = {key: waited.result() for key, waited in waits.items()}
    for (name, _), result in results.items():
        expected = ("".join(f"{n}\n" for n in range(1, 13)), 3) if name == "chatty" else ("end\n", 4)
        assert (result.stdout, result.exit_code) == expected
    assert idle.cuts == 0 and old.cuts == 4
