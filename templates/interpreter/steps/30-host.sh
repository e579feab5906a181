#!/bin/sh
# The host and the kernels.
set -eu

place=/opt/bellglass/interpreter
mkdir -p "$place"
cp -R host bellglass_kernels "$place/"
chmod -R a=rX "$place"
chmod 0755 "$place/host"
python3 -m compileall -q "$place"
