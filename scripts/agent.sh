#!/usr/bin/env bash
# agent.sh : builds the guest agent and the launcher of the helper for both architectures, when their sources changed.
source "$(dirname "$0")/lib.sh"

one_at_a_time
mapfile -d '' sources < <(find "$CHECKOUT/guest" "$CHECKOUT/host" \( -name build -o -name tests -o -name fuzz \) -prune -o \
    -type f \( -name '*.c' -o -name '*.h' -o -name Makefile \) -print0 | sort -z)
[[ ${#sources[@]} -gt 0 ]] || fail agent "no sources in $CHECKOUT/guest"
wanted="$ZIG_VERSION $(cd "$CHECKOUT" && hash_of "${sources[@]}")"
stamp=$BUILD/agent.stamp
binaries=("$AGENT_DIR/bellglass-agent-x86_64" "$AGENT_DIR/bellglass-agent-aarch64"
    "$AGENT_DIR/bellglass-launch-x86_64" "$AGENT_DIR/bellglass-launch-aarch64")

# The binaries count too: another build may have put its own in their place.
made() { printf '%s %s' "$wanted" "$(hash_of "${binaries[@]}")"; }
all_there() {
    local binary
    for binary in "${binaries[@]}"; do [[ -x $binary ]] || return 1; done
}
if all_there && [[ -f $stamp && $(<"$stamp") == "$(made)" ]]; then
    step agent "up to date in $AGENT_DIR"
    exit 0
fi

if [[ ! -f $ZIG_VENV/.complete ]]; then
    step agent "fetching the compiler (zig $ZIG_VERSION)"
    logged zig-venv "$PYTHON" -m venv --clear "$ZIG_VENV"
    logged zig-pip "$ZIG_VENV/bin/python" -m pip install --disable-pip-version-check "ziglang==$ZIG_VERSION"
    : >"$ZIG_VENV/.complete"
fi

step agent "building for x86_64 and aarch64"
mkdir -p "$AGENT_DIR" "$BUILD" "$ZIG_GLOBAL_CACHE_DIR" "$ZIG_LOCAL_CACHE_DIR"
rm -f "$stamp"
logged agent make -B -C "$CHECKOUT/guest" agents ZIG="$ZIG_VENV/bin/python -m ziglang" OUT="$AGENT_DIR"
logged agent make -B -C "$CHECKOUT/host" launchers ZIG="$ZIG_VENV/bin/python -m ziglang" OUT="$AGENT_DIR"
all_there || fail agent "not all were made of ${binaries[*]}"
made >"$stamp"
