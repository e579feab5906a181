#!/usr/bin/env bash
# setup.sh : Docker's daemon and client for the comparison, prints the folder they are in (empty: they are on PATH).
# They are unpacked from Debian's packages into the cache and not installed: the system gets no service, no group and
# no unit, and `make clean` removes them. Needs root for apt's lists.
source "$(dirname "$0")/../scripts/lib.sh"

PREFIX=$BELLGLASS_CACHE/tools/docker

if command -v dockerd >/dev/null && command -v containerd >/dev/null && command -v docker >/dev/null; then
    exit 0
fi
if [[ ! -f $PREFIX/.done ]]; then
    one_at_a_time
    [[ $EUID -eq 0 ]] || fail docker "not there; as root this script unpacks it, or run the benchmarks with --no-peers"
    apt-cache show docker.io >/dev/null 2>&1 || logged apt-update apt-get update ||
        step packages "apt-get update complained; trying with what it got" >&2
    wanted=(docker.io)
    # Newer releases have the client in a package of its own.
    [[ -z $(apt-cache madison docker-cli) ]] || wanted+=(docker-cli)
    # Whatever an install would add; a line with [version] is an upgrade of what is there.
    mapfile -t packages < <(apt-get --simulate --no-install-recommends install "${wanted[@]}" |
        awk '$1 == "Inst" && $3 !~ /^\[/ {print $2}')
    [[ ${#packages[@]} -gt 0 ]] || fail docker "apt knows no docker.io; run the benchmarks with --no-peers"
    rm -rf "$PREFIX" "$PREFIX.new"
    mkdir -p "$PREFIX.new/debs"
    step docker "unpacking ${packages[*]}" >&2
    (cd "$PREFIX.new/debs" && logged docker-download apt-get download "${packages[@]}")
    for archive in "$PREFIX.new"/debs/*.deb; do
        dpkg-deb --extract "$archive" "$PREFIX.new"
    done
    rm -r "$PREFIX.new/debs"
    touch "$PREFIX.new/.done"
    mv "$PREFIX.new" "$PREFIX"
fi
printf '%s\n' "$PREFIX"
