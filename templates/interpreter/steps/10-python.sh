#!/bin/sh
# The packages, without their tests: those are a tenth of the size and nobody imports them.
set -eu

python3 -m pip install --quiet --no-cache-dir --no-compile --root-user-action=ignore --requirement requirements.txt
packages=/usr/local/lib/python3.11/dist-packages
for package in numpy pandas scipy matplotlib fontTools zmq jupyter_client ipykernel IPython tornado; do
    find "$packages/$package" -type d \( -name tests -o -name test \) -prune -exec rm -r {} +
done
