"""X.509 of published ports: a CA for the names below one domain, and certificates of it.

Imported where it is needed: the package cryptography is the `server` extra's.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CA_DAYS = 3650
CERT_DAYS = 397
"""The most that browsers take."""
_CLOCKS_APART = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate with its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def certificate_pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        return self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )


def load(certificate_pem: bytes, key_pem: bytes) -> Pair:
    key = serialization.load_pem_private_key(key_pem, None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return Pair(x509.load_pem_x509_certificate(certificate_pem), key)


def new_ca(domain: str, now: datetime) -> Pair:
    """Good for names below the domain alone."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(f"Bellglass previews {domain}")
    certificate = (
        _builder(name, name, key, now, now + timedelta(days=CA_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.NameConstraints([x509.DNSName(domain)], None), critical=True)
        .sign(key, hashes.SHA256())
    )
    return Pair(certificate, key)


def new_certificate(domain: str, ca: Pair, now: datetime) -> Pair:
    """For every name one label below the domain."""
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        _builder(_name(f"*.{domain}"), ca.certificate.subject, key, now, now + timedelta(days=CERT_DAYS))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(f"*.{domain}")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca.key.public_key()), critical=False)
        .sign(ca.key, hashes.SHA256())
    )
    return Pair(certificate, key)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime, until: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCKS_APART)
        .not_valid_after(until)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _usage(*, signs: bool) -> x509.KeyUsage:
    others = {"content_commitment": False, "key_encipherment": False, "data_encipherment": False}
    others |= {"key_agreement": False, "encipher_only": False, "decipher_only": False}
    return x509.KeyUsage(digital_signature=not signs, key_cert_sign=signs, crl_sign=signs, **others)
