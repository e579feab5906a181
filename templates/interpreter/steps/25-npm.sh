#!/bin/sh
# What JavaScript works on data with, and tsc. Node looks for packages in every folder above the program's own, so what is
# in the root is there for all, and what somebody installs beside a program comes before it.
set -eu

place=/opt/bellglass/npm
mkdir -p "$place"
cp npm/package.json npm/package-lock.json "$place/"
# By the lock's digests, and nothing of what packages would like to run.
npm ci --prefix "$place" --ignore-scripts --no-audit --no-fund --no-update-notifier --loglevel=warn
ln -s "$place/node_modules" /node_modules
for tool in tsc tsserver; do ln -s "$place/node_modules/.bin/$tool" "/usr/local/bin/$tool"; done
chmod -R a=rX,u+w "$place"
chmod 0755 "$place"/node_modules/typescript/bin/*
