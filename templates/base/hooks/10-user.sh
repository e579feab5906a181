#!/bin/sh
# Makes the account that executions run as: uid and gid 1000, passwordless sudo. $1 is the root file system.
set -eu
root=$1

chroot "$root" groupadd --gid 1000 user
chroot "$root" useradd --uid 1000 --gid 1000 --create-home --shell /bin/bash user
chmod 0755 "$root/home/user"

# Debian builds sudo with fqdn on: it would ask DNS for the sandbox's name before every command.
cat > "$root/etc/sudoers.d/user" <<'EOF'
Defaults !fqdn
Defaults !lecture
user ALL=(ALL:ALL) NOPASSWD: ALL
EOF
chmod 0440 "$root/etc/sudoers.d/user"
chroot "$root" visudo --check --quiet

printf 'LANG=C.UTF-8\n' > "$root/etc/default/locale"
