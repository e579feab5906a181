"""A CA of the installation's own for published ports on a laptop or in a closed network, and a certificate of it.

Who trusts the CA trusts it for names below the one domain alone: that is written into it. Its key stays with whoever
ran the command; the server gets the certificate's.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from bellglass.datadir import DataDir
from bellglass.errors import InvalidRequest, NotSupported


@dataclass(frozen=True, slots=True)
class Made:
    ca: Path
    cert: Path
    key: Path
    expires_at: datetime
    new_ca: bool


def make(data: DataDir, domain: str) -> Made:
    """A certificate for names below `domain`, of the CA of this domain, which is made when there is none. Safe to
    repeat: it renews the certificate. Raises InvalidRequest, NotSupported (the `server` extra is missing)."""
    try:
        from bellglass.supervise import certificates
    except ImportError as error:
        raise NotSupported(
            "certificates need the package cryptography", hint="pip install bellglass[server]"
        ) from error
    if "." not in domain:
        raise InvalidRequest(
            f"previews.domain: clients take no certificate for *.{domain}",
            hint=f'a domain of two labels, such as "preview.{domain}"',
            details={"field": "previews.domain"},
        )
    folder = data.previews_dir
    folder.mkdir(mode=0o755, exist_ok=True)
    folder.chmod(0o755)
    now = datetime.now(UTC)
    ca_file, ca_key_file = folder / f"ca-{domain}.pem", folder / f"ca-{domain}.key"
    new_ca = not (ca_file.exists() and ca_key_file.exists())
    if new_ca:
        ca = certificates.new_ca(domain, now)
        _write(ca_key_file, ca.key_pem, 0o600)
        _write(ca_file, ca.certificate_pem, 0o644)
    else:
        ca = certificates.load(ca_file.read_bytes(), ca_key_file.read_bytes())
    made = certificates.new_certificate(domain, ca, now)
    cert_file, key_file = folder / "cert.pem", folder / "key.pem"
    owner = data.server_dir.stat() if data.server_dir.exists() and os.geteuid() == 0 else None
    _write(key_file, made.key_pem, 0o600, owner=owner)
    _write(cert_file, made.certificate_pem + ca.certificate_pem, 0o644)
    return Made(ca_file, cert_file, key_file, made.certificate.not_valid_after_utc, new_ca)


def _write(path: Path, data: bytes, mode: int, *, owner: os.stat_result | None = None) -> None:
    """The old or the new, whole and never more open than `mode`."""
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with open(descriptor, "wb") as file:
        os.fchmod(descriptor, mode)
        if owner is not None:
            os.fchown(descriptor, owner.st_uid, owner.st_gid)
        file.write(data)
        file.flush()
        os.fsync(descriptor)
    new.rename(path)
