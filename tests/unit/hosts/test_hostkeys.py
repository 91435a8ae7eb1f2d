"""Known-hosts files: trusted keys, untrusted keys, and the advice after a refusal."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import asyncssh
import pytest

from atlctl.backends.hosts.hostkeys import Entries, KnownHosts, refusal
from atlctl.jobs.errors import UsageError

OWN, OTHER, ELLIPTIC = (
    asyncssh.generate_private_key(kind).convert_to_public()
    for kind in ("ssh-ed25519", "ssh-ed25519", "ecdsa-sha2-nistp256")
)


@pytest.fixture(autouse=True)
def no_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    """asyncssh asks the system's library whether a name is an address: not a lookup, but tests allow none."""
    monkeypatch.setattr("asyncssh.misc._normalize_scoped_ip", lambda address: address)


def line(key: asyncssh.SSHKey) -> str:
    return key.export_public_key().decode().strip()


def entries(*lines: str) -> Entries:
    return Entries({"known": "\n".join(lines)})


def keys(found: Entries, place: str, port: int | None) -> list[asyncssh.SSHKey]:
    return list(found.known.match(place, "", port)[0])


def advice(found: Entries) -> str:
    """The suggested command after 127.0.0.9 has presented the key OWN."""
    return re.split("then: |confirms the change: ", refusal("127.0.0.9", 2222, found, OWN, "first").hint or "")[-1]


@pytest.mark.parametrize(
    ("revoked", "trusted"),
    [
        ("@revoked [127.0.0.9]:2222", "127.0.0.9"),
        ("@revoked 127.0.0.9", "[127.0.0.9]:2222"),
        ("@revoked [127.0.0.9]:2222", "[127.0.0.9]:2222"),
        ("@revoked\t*", "127.0.*"),
    ],
)
def test_a_revoked_key_is_never_trusted(revoked: str, trusted: str) -> None:
    found = entries(f"{trusted} {line(OWN)}", f"{revoked} {line(OWN)}", f"{trusted} {line(OTHER)}")
    assert keys(found, "127.0.0.9", 2222) == [OTHER]
    assert found.is_revoked("127.0.0.9", 2222, OWN)
    assert not found.is_revoked("127.0.0.9", 2222, OTHER)
    assert "was revoked" in refusal("127.0.0.9", 2222, found, OWN, "f").message


def test_a_revoked_authority_is_never_trusted() -> None:
    found = entries(f"@cert-authority 127.0.* {line(OWN)}", f"@revoked * {line(OWN)}")
    assert not found.known.match("127.0.0.9", "", 22)[1]
    assert not found.trusted("127.0.0.9", 22)


def test_kinds_of_keys_that_are_known_are_asked_for_first_and_no_kind_is_left_out() -> None:
    found = entries(f"127.0.0.9 {line(ELLIPTIC)}")
    kinds = found.algorithms("127.0.0.9", 22)
    assert kinds[0] == "ecdsa-sha2-nistp256"
    assert {"ssh-ed25519", "rsa-sha2-512"} <= set(kinds)
    assert len(set(kinds)) == len(kinds)
    assert found.algorithms("127.0.0.8", 22) == ()


def test_the_advice_for_a_host_that_is_not_known_adds_the_key_that_was_shown() -> None:
    error = refusal("127.0.0.9", 2222, entries(), OWN, "/a b/known")
    assert OWN.get_fingerprint() in error.message
    echo, word, arrow, path = shlex.split((error.hint or "").rpartition("then: ")[2])
    assert (echo, arrow, path) == ("echo", ">>", "/a b/known")
    assert keys(entries(word), "127.0.0.9", 2222) == [OWN]
    assert not keys(entries(word), "127.0.0.9", 22)


def test_the_advice_for_a_changed_key_names_the_file_and_the_entry() -> None:
    found = Entries({"first": f"127.0.0.8 {line(OWN)}", "/a b": f"127.0.0.9 {line(OTHER)}"})
    assert advice(found) == "ssh-keygen -f '/a b' -R 127.0.0.9"
    found = Entries({"first": f"[127.0.0.9]:2222 {line(OTHER)}\n", "/a b": f"127.0.0.9 {line(OTHER)}"})
    assert advice(found) == "ssh-keygen -f first -R '[127.0.0.9]:2222'"


def test_a_new_key_is_added_and_known_from_then_on(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "known"
    known = KnownHosts(accept_new=True)
    before = known.of([str(path)])
    known.add([str(path)], "127.0.0.9", 2222, OWN)
    assert keys(before, "127.0.0.9", 2222) == [OWN]
    assert keys(KnownHosts().of([str(path)]), "127.0.0.9", 2222) == [OWN]
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_comment_may_be_of_any_bytes(tmp_path: Path) -> None:
    path = tmp_path / "known"
    path.write_bytes(b"# \xe9\xff\n127.0.0.9 " + line(OWN).encode() + b" J\xfcrgen\n")
    assert keys(KnownHosts().of([str(path)]), "127.0.0.9", 22) == [OWN]


@pytest.mark.parametrize("text", ["@maybe 127.0.0.9 x y", "127.0.0.9", "@revoked", "@revoked 127.0.0.9"])
def test_a_line_that_is_none_is_told(tmp_path: Path, text: str) -> None:
    path = tmp_path / "known"
    path.write_text(text + "\n")
    with pytest.raises(UsageError, match="cannot be read"):
        KnownHosts().of([str(path)])
