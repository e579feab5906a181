"""A CA of the installation's own for published ports on a laptop or in a closed network, and a certificate of it.

Who trusts the CA trusts it for names below the one domain alone: that is written into it. Its key stays with whoever
ran the command; the server gets the certificate's.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from bellglass.datadir import DataDir
from bellglass.errors import InvalidRequest, NotSupported

CA_DAYS = 3650
CERT_DAYS = 397
"""The most that browsers take."""


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
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
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
    key_form = (serialization.PrivateFormat.PKCS8, serialization.NoEncryption())

    def name(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])

    def pem_of(key: ec.EllipticCurvePrivateKey) -> bytes:
        return key.private_bytes(serialization.Encoding.PEM, *key_form)

    def usage(*, signs: bool) -> x509.KeyUsage:
        others = {"content_commitment": False, "key_encipherment": False, "data_encipherment": False}
        others |= {"key_agreement": False, "encipher_only": False, "decipher_only": False}
        return x509.KeyUsage(digital_signature=not signs, key_cert_sign=signs, crl_sign=signs, **others)

    ca_file, ca_key_file = folder / f"ca-{domain}.pem", folder / f"ca-{domain}.key"
    new_ca = not (ca_file.exists() and ca_key_file.exists())
    if new_ca:
        ca_key = ec.generate_private_key(ec.SECP256R1())
        ca = (
            x509.CertificateBuilder()
            .subject_name(name(f"Bellglass previews {domain}"))
            .issuer_name(name(f"Bellglass previews {domain}"))
            .public_key(ca_key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(days=CA_DAYS))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage(signs=True), critical=True)
            .add_extension(x509.NameConstraints([x509.DNSName(domain)], None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), critical=False)
            .sign(ca_key, hashes.SHA256())
        )
        _write(ca_key_file, pem_of(ca_key), 0o600)
        _write(ca_file, ca.public_bytes(serialization.Encoding.PEM), 0o644)
    else:
        loaded = serialization.load_pem_private_key(ca_key_file.read_bytes(), None)
        assert isinstance(loaded, ec.EllipticCurvePrivateKey)
        ca_key, ca = loaded, x509.load_pem_x509_certificate(ca_file.read_bytes())
    key = ec.generate_private_key(ec.SECP256R1())
    expires_at = now + timedelta(days=CERT_DAYS)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name(f"*.{domain}"))
        .issuer_name(ca.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(expires_at)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(f"*.{domain}")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    cert_file, key_file = folder / "cert.pem", folder / "key.pem"
    chain = certificate.public_bytes(serialization.Encoding.PEM) + ca.public_bytes(serialization.Encoding.PEM)
    owner = data.server_dir.stat() if data.server_dir.exists() and os.geteuid() == 0 else None
    _write(key_file, pem_of(key), 0o600, owner=owner)
    _write(cert_file, chain, 0o644)
    return Made(ca_file, cert_file, key_file, expires_at, new_ca)


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
