"""Builds a template of the shipped recipes.

    python -m bellglass.builder base --templates-dir DIR

prints one line per phase and does nothing when the template is there already.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from bellglass.builder.build import build_shown
from bellglass.errors import BellglassError


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bellglass.builder", description="Builds templates.")
    parser.add_argument("name")
    parser.add_argument("--templates-dir", type=Path, required=True)
    parser.add_argument("--extra-ca", type=Path, help="a PEM file that sandboxes trust as well")
    options = parser.parse_args(argv)
    try:
        template = build_shown(options.name, options.templates_dir, extra_ca=options.extra_ca)
    except BellglassError as error:
        print(f"template {options.name}: {error}", file=sys.stderr)
        return 1
    print(f"template {template.name}: {template.folder}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
