"""Keys that all workers of a start derive alike, whatever their version."""

from __future__ import annotations

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from atlctl.backends.hosts.jobkeys import JobAccess

ACCESS = JobAccess(bytes(range(32)), "start-1")


def derived(secret: bytes, label: bytes) -> bytes:
    seed = HKDF(SHA256(), 32, None, label).derive(secret)
    return Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()


def test_keys_are_hkdf_of_the_secret_and_a_label() -> None:
    assert ACCESS.client_key().public_data.endswith(derived(ACCESS.secret, b"atlctl run client\0start-1"))
    assert ACCESS.host_key(12).public_data.endswith(derived(ACCESS.secret, b"atlctl run host\x0012\0start-1"))


def test_the_keys_of_a_start_are_all_different_and_of_no_other_start() -> None:
    long = JobAccess(b"a longer text of a key file, of any length" * 3, "start-1")
    accesses = (ACCESS, JobAccess(ACCESS.secret, "start-2"), JobAccess(ACCESS.secret, "1\0start-1"), long)
    keys = [key for one in accesses for key in (one.client_key(), *map(one.host_key, (0, 1, 11)))]
    assert len({key.public_data for key in keys}) == len(keys)


def test_the_secret_is_not_shown() -> None:
    assert repr(ACCESS) == "JobAccess(start='start-1')"
