#!/bin/sh
# Byte code for all, and nothing that belongs to the build.
set -eu

# Some packages ship files for other versions of Python, which no compiler takes.
python3 -m compileall -q -j 0 /usr/local/lib/python3.11/dist-packages || true
# Programs made for E2B's interpreter give it as a context's folder; the user of ours can be root whenever it likes.
chmod 0755 /root
rm -rf /root/.cache /root/.npm /root/.config /root/.local /home/user/.cache
find /var/log /var/cache/apt /var/lib/apt/lists -type f -delete
