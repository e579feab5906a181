#!/bin/sh
# Lets a plain `pip install` work. A sandbox has one user and one purpose, so Debian's marker that sends people to
# a venv protects nothing here. Diverted, not deleted: an upgrade of Python inside would bring it back.
set -eu
root=$1

for marker in "$root"/usr/lib/python3.*/EXTERNALLY-MANAGED; do
    path=${marker#"$root"}
    chroot "$root" dpkg-divert --quiet --local --rename --divert "$path.dpkg-dist" --add "$path"
done
