"""A certificate authority and a certificate for 127.0.0.1, created once per process."""

from __future__ import annotations

import functools
import ipaddress
import os
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID


@dataclass(frozen=True, slots=True)
class Bundle:
    """PEM texts: CA certificate, server certificate, server key and CA key."""

    authority: bytes
    certificate: bytes
    key: bytes
    authority_key: bytes


@functools.cache
def bundle() -> Bundle:
    """An ECDSA CA and server certificate, valid for a week."""
    authority_key = ec.generate_private_key(ec.SECP256R1())
    authority = _certificate("test authority", authority_key, None, None)
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = _certificate("kube-apiserver", key, authority, authority_key)
    pem = serialization.Encoding.PEM
    return Bundle(authority.public_bytes(pem), certificate.public_bytes(pem), _private(key), _private(authority_key))


def client(user: str) -> tuple[bytes, bytes]:
    """Certificate and key of a user, signed by this process's CA."""
    made = bundle()
    authority_key = serialization.load_pem_private_key(made.authority_key, None)
    assert isinstance(authority_key, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    authority = x509.load_pem_x509_certificate(made.authority)
    certificate = _certificate(user, key, authority, authority_key, client=True)
    return certificate.public_bytes(serialization.Encoding.PEM), _private(key)


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def write(made: Bundle, folder: str) -> tuple[str, str, str]:
    """Paths of the CA, certificate and key in `folder`."""
    paths = []
    for name, text in (("ca.crt", made.authority), ("server.crt", made.certificate), ("server.key", made.key)):
        path = os.path.join(folder, name)
        with open(path, "wb") as file:
            file.write(text)
        os.chmod(path, 0o600)
        paths.append(path)
    return paths[0], paths[1], paths[2]


def server_context(authority: str, certificate: str, key: str) -> ssl.SSLContext:
    """Clients may send a certificate; its common name is the user."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    context.load_verify_locations(authority)
    context.verify_mode = ssl.CERT_OPTIONAL
    return context


def _certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: x509.Certificate | None,
    issuer_key: ec.EllipticCurvePrivateKey | None,
    *,
    client: bool = False,
) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    start = datetime.now(UTC) - timedelta(hours=1)
    built = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + timedelta(days=7))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key((issuer_key or key).public_key()), critical=False
        )
        .add_extension(
            x509.KeyUsage(
                digital_signature=True,
                content_commitment=False,
                key_encipherment=False,
                data_encipherment=False,
                key_agreement=False,
                key_cert_sign=issuer is None,
                crl_sign=issuer is None,
                encipher_only=False,
                decipher_only=False,
            ),
            critical=True,
        )
    )
    if issuer is not None:
        names: list[x509.GeneralName] = [x509.DNSName("localhost"), x509.DNSName("kubernetes.default.svc")]
        names.append(x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
        usage = ExtendedKeyUsageOID.CLIENT_AUTH if client else ExtendedKeyUsageOID.SERVER_AUTH
        built = built.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        if not client:
            built = built.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return built.sign(issuer_key or key, hashes.SHA256())
