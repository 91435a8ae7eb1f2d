"""The keys of one start of a job of `atlctl run`, all made from the job's secret: who has it needs no first meeting."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncssh

#: The user's name for a worker of `atlctl run`, which lets in a key: a user of a container may have no name.
JOB_USER = "atlctl"
#: The head of an Ed25519 key in PKCS #8 (RFC 8410), before its 32 bytes.
_PKCS8 = bytes.fromhex("302e020100300506032b657004220420")


@dataclass(frozen=True, slots=True)
class JobAccess:
    """The way into the workers of one start of a job.

    `secret`: 32 random bytes, or a longer text with as much chance in it. `start`: the id of the start.
    """

    secret: bytes = field(repr=False)
    start: str

    def client_key(self) -> asyncssh.SSHKey:
        """The one key that the workers let in."""
        return _key(self.secret, f"atlctl run client\0{self.start}")

    def host_key(self, index: int) -> asyncssh.SSHKey:
        """The key by which the worker with this index is known."""
        return _key(self.secret, f"atlctl run host\0{index}\0{self.start}")


@cache
def _key(secret: bytes, label: str) -> asyncssh.SSHKey:
    """An Ed25519 key by HKDF (RFC 5869) with SHA-256 and no salt: for 32 bytes one block is enough."""
    # Not at the top: commands that need no keys ask whether a wrapper runs here, and a wrapper may need none.
    import hashlib
    import hmac

    import asyncssh

    extracted = hmac.digest(bytes(32), secret, hashlib.sha256)
    return asyncssh.import_private_key(_PKCS8 + hmac.digest(extracted, label.encode() + b"\x01", hashlib.sha256))
