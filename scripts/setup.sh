#!/usr/bin/env bash
# setup.sh run|dev|test : fills the venv and what the system lacks. `run` is what the product and the demo need, `dev`
# adds the tools, `test` the browser (100 MB to fetch), nginx, Caddy and the WebSocket suite of the tests. Done already
# means a second or less.
source "$(dirname "$0")/lib.sh"

level=${1:-dev}
[[ $level == run || $level == dev || $level == test ]] || fail setup "unknown level '$level': run, dev or test"

RUN_PACKAGES=(ca-certificates e2fsprogs iproute2 lxcfs mmdebstrap mount nftables procps python3 python3-venv runc util-linux)
DEV_PACKAGES=(clang-14 gcc git golang-github-containers-common libc6-dev libclang-rt-14-dev llvm-14 make
    qemu-user-static shellcheck strace)
TEST_PACKAGES=(chromium-headless-shell)

packages=("${RUN_PACKAGES[@]}")
extras=server
wants_peers=0
if [[ $level != run ]]; then
    packages+=("${DEV_PACKAGES[@]}")
    extras=server,dev
fi
if [[ $level == test ]]; then
    packages+=("${TEST_PACKAGES[@]}")
    wants_peers=1
    level=dev # the venv is the same
fi

missing_packages() {
    local package
    for package in "${packages[@]}"; do
        dpkg-query --show --showformat '${db:Status-Status}\n' "$package" 2>/dev/null | grep -qx installed ||
            printf '%s\n' "$package"
    done
}

install_packages() {
    local -a missing
    mapfile -t missing < <(missing_packages)
    if [[ ${#missing[@]} -eq 0 ]]; then
        step packages "all ${#packages[@]} are there"
        return
    fi
    if [[ $EUID -ne 0 ]]; then
        fail packages "missing; run: sudo apt-get install -y --no-install-recommends ${missing[*]}"
    fi
    step packages "installing ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    # Without an init system, starting lxcfs from its package would fail the install; the node starts its own.
    [[ -d /run/systemd/system ]] || export RUNLEVEL=1
    # One broken third-party source must not stop packages that come from Debian.
    logged apt-update apt-get update || step packages "apt-get update complained; trying with what it got"
    logged apt-install apt-get install -y --no-install-recommends "${missing[@]}"
}

# fetch PACKAGE PROGRAM : Debian's package below tools/PACKAGE. Unpacked, not installed: a web server's package would serve
# port 80 from now on.
fetch() {
    local package=$1 folder=$BELLGLASS_CACHE/tools/$1 work status=0
    [[ ! -x $folder/$2 ]] || return 0
    step "$package" "into $folder"
    mkdir -p "$folder"
    work=$(mktemp -d)
    (cd "$work" && logged "$package" apt-get download "$package" && dpkg --extract "$package"_*.deb "$folder") || status=$?
    rm -rf "$work"
    return "$status"
}

fetch_servers() {
    local absent=$BELLGLASS_CACHE/tools/caddy/absent
    fetch nginx usr/sbin/nginx
    if fetch caddy usr/bin/caddy; then
        rm -f "$absent"
    else
        # Not every release of Debian or Ubuntu has it. Its test skips with these words.
        tail -n 1 "$LOGS/caddy.log" | tee "$absent"
    fi
}

fill_venv() {
    local wanted
    wanted=$(printf '%s %s %s' "$(hash_of "$CHECKOUT/pyproject.toml")" "$CHECKOUT" "$("$PYTHON" -V)")
    # What serves the tests serves the demo as well.
    local have
    for have in "$level" dev; do
        if [[ -f $VENV/.$have && $(<"$VENV/.$have") == "$wanted" ]]; then
            step venv "up to date in $VENV"
            return
        fi
    done
    # A venv that holds the tests' tools keeps them current, whoever asks.
    [[ ! -f $VENV/.dev ]] || { level=dev extras=server,dev; }
    step venv "installing bellglass[$extras] into $VENV"
    rm -f "$VENV/.run" "$VENV/.dev"
    # After an upgrade of the system's Python the old venv runs, but without its packages.
    if ! grep -qsx "version = $("$PYTHON" -c 'import platform; print(platform.python_version())')" "$VENV/pyvenv.cfg"; then
        logged venv "$PYTHON" -m venv --clear "$VENV"
    fi
    logged pip "$VENV/bin/python" -m pip install --disable-pip-version-check -e "${CHECKOUT}[$extras]"
    printf '%s' "$wanted" >"$VENV/.$level"
}

# apt first: it is what brings python3-venv.
one_at_a_time
install_packages
[[ $wants_peers == 0 ]] || fetch_servers
fill_venv
# The daemons' users can't write into the checkout: without this each start of a daemon compiles its modules.
"$VENV/bin/python" -m compileall -q "$CHECKOUT/src"
if [[ $wants_peers == 1 ]]; then
    flock --unlock 9 # it takes the lock itself
    status=0
    "$CHECKOUT/scripts/compat_env.sh" autobahn >/dev/null || status=$?
    # Its test skips with the same words where no mirror has it.
    [[ $status == 0 || $status == 3 ]] || fail setup "the WebSocket suite could not be made"
fi
