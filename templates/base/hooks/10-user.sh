#!/bin/sh
# Makes the account that executions run as: uid and gid 1000, passwordless sudo. $1 is the root file system.
set -eu
root=$1

chroot "$root" groupadd --gid 1000 user
chroot "$root" useradd --uid 1000 --gid 1000 --create-home --shell /bin/bash user
chmod 0755 "$root/home/user"

# Debian builds sudo with fqdn on: it would ask DNS for the sandbox's name before every command. What points tools at
# the operator's index, registry and CA holds for root too.
cat > "$root/etc/sudoers.d/user" <<'EOF'
Defaults !fqdn
Defaults !lecture
Defaults env_keep += "PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_TRUSTED_HOST PIP_CERT npm_config_registry"
Defaults env_keep += "SSL_CERT_FILE REQUESTS_CA_BUNDLE NODE_EXTRA_CA_CERTS"
user ALL=(ALL:ALL) NOPASSWD: ALL
EOF
chmod 0440 "$root/etc/sudoers.d/user"
chroot "$root" visudo --check --quiet

printf 'LANG=C.UTF-8\n' > "$root/etc/default/locale"
