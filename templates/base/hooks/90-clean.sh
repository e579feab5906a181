#!/bin/sh
# Takes out what belongs to the machine that built the template or that nobody reads inside a sandbox.
set -eu
root=$1

# Licences stay; the rest of the documentation is a quarter of the size.
find "$root/usr/share/doc" -mindepth 1 -type f ! -name copyright -delete
find "$root/usr/share/doc" -mindepth 1 -type l ! -name copyright -delete
find "$root/usr/share/doc" -mindepth 1 -type d -empty -delete
find "$root/usr/share/man" "$root/usr/share/info" "$root/usr/share/locale" -type f -delete
find "$root/usr/share/man" "$root/usr/share/info" "$root/usr/share/locale" -type l -delete

find "$root/var/log" -type f -delete
find "$root/var/cache/apt" "$root/var/lib/apt/lists" -type f -delete
rm -f "$root"/var/cache/debconf/*-old "$root"/var/lib/dpkg/*-old "$root/var/cache/ldconfig/aux-cache"
rm -f "$root"/etc/passwd- "$root"/etc/group- "$root"/etc/shadow- "$root"/etc/gshadow-
rm -f "$root"/etc/subuid- "$root"/etc/subgid-

# Bind-mounted over in every sandbox, so that the template needs them as plain files.
for name in resolv.conf hostname hosts; do
    rm -f "$root/etc/$name"
    : > "$root/etc/$name"
    chmod 0644 "$root/etc/$name"
done

# An empty machine-id means "not known yet".
: > "$root/etc/machine-id"
chmod 0444 "$root/etc/machine-id"
