"""The certificates of a control plane, made on the spot, by one authority and a second for the front proxy.

Authorities and the service-account key are kept in their folder and used again, so that tokens and
kubeconfigs outlive a restart; everything an authority signs is signed anew at each start. Keys are P-256:
made in a millisecond.
"""

import datetime as dt
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LIFETIME = dt.timedelta(days=365)
CLOCK_SKEW = dt.timedelta(hours=1)


@dataclass(frozen=True)
class Pair:
    """A certificate and its private key, as PEM files."""

    cert: Path
    key: Path


class Authority:
    """A self-signed authority that lives in `folder` as `<name>.crt` and `<name>.key`."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self._cert = x509.load_pem_x509_certificate(pair.cert.read_bytes())
        self._key = _load_key(pair.key)

    @classmethod
    def open(cls, folder: Path, name: str) -> "Authority":
        """The authority found in the folder, or a new one."""
        pair = Pair(folder / f"{name}.crt", folder / f"{name}.key")
        if not pair.cert.exists():
            key = ec.generate_private_key(ec.SECP256R1())
            subject = _subject(f"prefleet-test-{name}", ())
            unsigned = _builder(subject, subject, key.public_key(), dt.datetime.now(dt.UTC))
            unsigned = unsigned.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            _write_key(pair.key, key)
            _write_cert(pair.cert, unsigned.sign(key, hashes.SHA256()))
        return cls(pair)

    def issue(self, name: str, common_name: str, groups: Sequence[str] = (), hosts: Sequence[str] = ()) -> Pair:
        """Sign `<name>.crt` beside the authority's own: for a client always, for a server if it has hosts."""
        pair = Pair(self.pair.cert.with_name(f"{name}.crt"), self.pair.cert.with_name(f"{name}.key"))
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _subject(common_name, groups)
        builder = _builder(subject, self._cert.subject, key.public_key(), dt.datetime.now(dt.UTC))
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
        if hosts:
            usages.append(ExtendedKeyUsageOID.SERVER_AUTH)
            builder = builder.add_extension(x509.SubjectAlternativeName(map(_general_name, hosts)), critical=False)
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        _write_key(pair.key, key)
        _write_cert(pair.cert, builder.sign(self._key, hashes.SHA256()))
        return pair


def signing_key(folder: Path, name: str) -> Path:
    """A bare private key, made once: service-account tokens are signed with it and checked by it."""
    path = folder / f"{name}.key"
    if not path.exists():
        _write_key(path, ec.generate_private_key(ec.SECP256R1()))
    return path


def _subject(common_name: str, groups: Sequence[str]) -> x509.Name:
    """Kubernetes reads the user from the common name and the groups from the organisations."""
    organisations = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    return x509.Name([*organisations, x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: dt.datetime
) -> x509.CertificateBuilder:
    return x509.CertificateBuilder(
        issuer_name=issuer,
        subject_name=subject,
        public_key=key,
        serial_number=x509.random_serial_number(),
        not_valid_before=now - CLOCK_SKEW,
        not_valid_after=now + LIFETIME,
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _load_key(path: Path) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise TypeError(f"{path} holds a {type(key).__name__}, not the elliptic-curve key that this module writes")
    return key


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    """In the older of the two formats: the API server reads service-account keys in no other."""
    path.touch(mode=0o600)
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
    )


def _write_cert(path: Path, cert: x509.Certificate) -> None:
    path.write_bytes(cert.public_bytes(serialization.Encoding.PEM))
