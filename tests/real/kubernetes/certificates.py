"""The certificate of an API server, from an authority of its own, and the key of its tokens."""

from __future__ import annotations

import datetime as dt
import ipaddress
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

SIZE = 2048
DAYS = 2


def write_certificates(folder: Path, addresses: Sequence[str], names: Sequence[str]) -> None:
    """Write ``ca.crt``, ``server.crt``, ``server.key``, ``tokens.key`` and ``tokens.pub``."""
    authority, its_name = _key(), _name("authority of the tests")
    _write_certificate(
        folder / "ca.crt",
        _builder(its_name, its_name, authority)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(authority, hashes.SHA256()),
    )
    server = _key()
    alternatives = [
        *(x509.IPAddress(ipaddress.ip_address(each)) for each in addresses),
        *(x509.DNSName(each) for each in names),
    ]
    _write_certificate(
        folder / "server.crt",
        _builder(_name("kube-apiserver"), its_name, server)
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .sign(authority, hashes.SHA256()),
    )
    _write_key(folder / "server.key", server)
    tokens = _key()
    _write_key(folder / "tokens.key", tokens)
    (folder / "tokens.pub").write_bytes(
        tokens.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )


def _key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=SIZE)


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: rsa.RSAPrivateKey
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.timezone.utc)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(days=DAYS))
    )


def _write_certificate(file: Path, certificate: x509.Certificate) -> None:
    file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def _write_key(file: Path, key: rsa.RSAPrivateKey) -> None:
    file.touch(mode=0o600)
    file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
    )
