#!/usr/bin/env bash
# template.sh [NAME] : builds a template (base, interpreter) into the cache, unless it is there. Needs root.
source "$(dirname "$0")/lib.sh"

name=${1:-base}
"$VENV/bin/python" -m bellglass.builder "$name" --templates-dir "$TEMPLATES"
