#!/usr/bin/env bash
# clean.sh : removes what this project made, by its known names: the cache folder may be one the user named.
source "$(dirname "$0")/lib.sh"

# A template below a running sandbox is its root file system. Mounts of daemons live in namespaces of their own.
if cat /proc/[0-9]*/mountinfo 2>/dev/null | grep -qE '/templates/[a-z][a-z0-9-]*-[0-9a-f]{16}/rootfs '; then
    fail clean "sandboxes still use templates in $TEMPLATES; run: bellglass down --sandboxes"
fi
rm -rf "$VENV" "$BUILD" "$AGENT_DIR"/bellglass-* "$CHECKOUT/guest/build"
rm -rf "$BELLGLASS_CACHE"/{templates,templates-packages,authority-packages,disks,build,compat,tools,logs} "$BELLGLASS_CACHE/.setup.lock"
find "$CHECKOUT" -name __pycache__ -not -path '*/.git/*' -prune -exec rm -rf {} +
rm -rf "$CHECKOUT"/{.pytest_cache,.ruff_cache,.mypy_cache,.hypothesis,build,dist}
# Another checkout's venv may live here still.
rmdir "$BELLGLASS_CACHE" 2>/dev/null || true
step clean "done"
