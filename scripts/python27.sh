#!/usr/bin/env bash
# python27.sh FOLDER : a Python 2.7 with its headers and no packages, run by FOLDER/bin/python. No supported Debian has one any more, so
# it comes from Debian 11, served by the mirror that the host's own sources name and checked by the keys of Debian's
# archive; it is unpacked, and the host's dpkg knows nothing of it. Ends with 3 where the mirror has no Debian 11.
source "$(dirname "$0")/lib.sh"

folder=${1:?usage: python27.sh FOLDER}
RELEASE=bullseye
PACKAGES=(libffi7 libpython2.7-dev libpython2.7-minimal libpython2.7-stdlib libssl1.1 python2.7-minimal)
KEYRING=/usr/share/keyrings/debian-archive-keyring.gpg
NOT_SERVED=3

not_served() {
    printf 'the mirror of this host has no Debian 11 (%s), where Python 2.7 would come from: %s\n' "$RELEASE" "$1" >&2
    exit "$NOT_SERVED"
}

host_mirror() {
    local host_release
    host_release=$(. /etc/os-release && printf '%s' "${VERSION_CODENAME:-}")
    PYTHONPATH=$CHECKOUT/src "$PYTHON" - "$host_release" <<'PYTHON'
import sys
from bellglass.node.image.apt_sources import host_sources
found = [line.split() for line in host_sources(sys.argv[1])]
print(next((uri for _, uri, release, _ in found if release == sys.argv[1]), ""))
PYTHON
}

# As the host's apt, its proxy and credentials included, but for where it keeps things and what it asks for.
own_apt() {
    apt-get --quiet -o Dir::State="$work" -o Dir::State::Lists="$work/lists" -o Dir::State::Status=/dev/null \
        -o Dir::Cache="$work" -o Dir::Cache::Archives="$work/archives" -o Dir::Etc::SourceList="$work/sources.list" \
        -o Dir::Etc::SourceParts=/dev/null -o APT::Sandbox::User=root -o APT::Update::Error-Mode=any \
        -o Acquire::Languages=none "$@"
}

download() {
    export LC_ALL=C.UTF-8
    own_apt update && (cd "$work/archives" && own_apt download "${PACKAGES[@]}")
}

unpack() {
    local package libraries
    for package in "$work"/archives/*.deb; do
        dpkg-deb --extract "$package" "$folder/python" || return
    done
    # Both were one when it was built; only what the host lacks lies there, never a C library.
    libraries=$(dirname "$(echo "$folder"/python/usr/lib/*/libssl.so.1.1)")
    mkdir -p "$folder/bin"
    cat >"$folder/bin/python" <<SHELL
#!/bin/sh
LD_LIBRARY_PATH=$libraries:\${LD_LIBRARY_PATH:-} exec $folder/python/usr/bin/python2.7 "\$@"
SHELL
    chmod +x "$folder/bin/python"
    "$folder/bin/python" -c 'import ctypes, ssl, zlib'
}

mirror=$(host_mirror)
[[ -n $mirror ]] || not_served "its sources name none of Debian's own"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/{lists,archives}/partial "$folder"
printf 'deb [signed-by=%s] %s %s main\n' "$KEYRING" "$mirror" "$RELEASE" >"$work/sources.list"
if ! logged python27 download; then
    ! grep -q "$RELEASE Release' does not have a Release file" "$LOGS/python27.log" || not_served "see $LOGS/python27.log"
    exit 1
fi
logged python27-unpack unpack
