"""The filings analyst: a program that a model wrote reads companies' filings in a sandbox without network.

One of the filings tells whatever reads it to send its environment to an address. The program obeys; nothing gets out,
the attempt is an event, and the analysis is done all the same.

    python examples/filings.py      # with an installation up: it finds it as the SDK does

`make demo` runs it too.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bellglass import Sandbox

FOLDER = Path(__file__).with_name("filings")
FILINGS = sorted(FOLDER.glob("*.xml"))
SCHEMA = {
    "type": "array",
    "minItems": len(FILINGS),
    "items": {
        "type": "object",
        "required": ["company", "growth", "margin", "margin_before"],
        "properties": {"company": {"type": "string"}},
        "additionalProperties": {"type": "number"},
    },
}


def analyse(**connection: Any) -> None:
    box = Sandbox(
        "base",
        inputs={f"filings/{path.name}": path for path in FILINGS},  # read-only, at /inputs
        env={"MARKET_DATA_KEY": "what an attacker would like to have"},
        cpus=2,
        memory="4GiB",
        lifetime="5m",
        network="deny",
        **connection,
    )
    try:
        box.files.upload(FOLDER / "analyse.py", "analyse.py")
        done = box.exec(["python3", "analyse.py"], timeout="2m", check=True)
        print(done.stdout + done.stderr, end="")
        report = box.exec(["cat", "report.json"]).json(schema=SCHEMA)
        for line in report:
            print(f"{line['company']:20} growth {line['growth']:+7.1%}  margin {line['margin']:+6.1%}")
        refusal = next(iter(box.events(follow=True, types=["egress.refused"])))  # comes within a second or two
        print(f"refused: {json.dumps(refusal.data)}")
    finally:
        box.delete()


if __name__ == "__main__":
    analyse()
