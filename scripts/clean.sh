#!/usr/bin/env bash
# clean.sh : removes what this project made, by its known names: the cache folder may be one the user named.
source "$(dirname "$0")/lib.sh"

# A template below a running sandbox is its root file system. No mount table shows that: the layers of its overlay lie in
# no name space. What each machine does show is the folder of its agent's socket.
if grep -qsE '/sandboxes/sb[a-z2-7]{20}/agent /run/bellglass ' /proc/[0-9]*/mountinfo; then
    fail clean "sandboxes run, and may stand on templates in $TEMPLATES; run: bellglass down --sandboxes"
fi
rm -rf "$VENV" "$BUILD" "$AGENT_DIR"/bellglass-* "$CHECKOUT/guest/build"
rm -rf "$BELLGLASS_CACHE"/{templates,templates-packages,authority-packages,disks,build,compat,tools,logs} "$BELLGLASS_CACHE/.setup.lock"
find "$CHECKOUT" -name __pycache__ -not -path '*/.git/*' -prune -exec rm -rf {} +
rm -rf "$CHECKOUT"/{.pytest_cache,.ruff_cache,.mypy_cache,.hypothesis,build,dist}
# Another checkout's venv may live here still.
rmdir "$BELLGLASS_CACHE" 2>/dev/null || true
step clean "done"
