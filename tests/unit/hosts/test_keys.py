"""Private keys: usable ones, and reports about the others."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from atlctl.backends.hosts.keys import Keys, none_accepted


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Keys: good, locked (passphrase `secret`), shared (readable by others), torn."""
    key = asyncssh.generate_private_key("ssh-ed25519")
    for name in ("good", "shared", "torn"):
        (tmp_path / name).write_bytes(key.export_private_key())
    (tmp_path / "locked").write_bytes(key.export_private_key(passphrase="secret", rounds=64))
    (tmp_path / "torn").write_bytes(key.export_private_key()[:100])
    for path in tmp_path.iterdir():
        path.chmod(0o640 if path.name == "shared" else 0o600)
    return tmp_path


def test_of_a_refused_login_only_its_own_keys_are_told(place: Path) -> None:
    keys = Keys(lambda _: None)
    assert not keys.load([str(place / name) for name in ("locked", "shared", "torn", "missing")])
    told = none_accepted("ml", "gpu1", keys, [str(place / "torn")]).message
    assert "torn cannot be read" in told
    assert "locked" not in told
    assert "shared" not in told
    told = none_accepted("ml", "gpu1", keys).message
    assert all(name in told for name in ("locked is encrypted", "read " + str(place / "shared"), "torn cannot be read"))


def test_a_certificate_that_is_for_others_or_has_expired_is_named(place: Path) -> None:
    authority, key = (asyncssh.generate_private_key("ssh-ed25519") for _ in range(2))
    certificate = place / "good-cert.pub"

    def told(**given: Any) -> str:
        made = authority.generate_user_certificate(key.convert_to_public(), "id", **given)
        certificate.write_bytes(made.export_certificate())
        return none_accepted("ml", "gpu1", Keys(lambda _: None), [str(place / "good")]).message

    assert told(principals=["bob", "alice"]).endswith(f" ({certificate} is for alice, bob, not for ml)")
    assert told(principals=["ml"]) == told() == "gpu1 refused ml: no key was accepted"
    assert "Certificate expired" in told(valid_after=1, valid_before=2)


def test_a_passphrase_is_asked_for_once_for_all_hosts(place: Path) -> None:
    asked = []
    answers = iter(["wrong", "secret"])

    def ask(path: str) -> str:
        asked.append(path)
        return next(answers)

    keys = Keys(ask)
    assert len(keys.load([str(place / "locked")])) == 1
    assert len(keys.load([str(place / "locked"), str(place / "good")])) == 2
    assert asked == [str(place / "locked")] * 2
    assert not keys.problems


def test_what_became_of_each_file(place: Path) -> None:
    keys = Keys(lambda _: None)
    paths = [str(place / name) for name in ("good", "locked", "shared", "torn", "missing")]
    keys.load(paths)
    found = keys.files(paths, "")
    assert [file.status for file in found] == ["read", "encrypted", "open", "unreadable", "absent"]
    assert [file.algorithm for file in found] == ["ssh-ed25519", "", "", "", ""]
    assert "chmod 600" in found[2].text
    # A key not intended for logins was not checked.
    assert [file.status for file in Keys(lambda _: None).files(paths[:1], "")] == ["absent"]


def test_an_agent_that_does_not_answer_is_no_empty_one(tmp_path: Path) -> None:
    async def ask() -> tuple[int | None, int | None]:
        keys = Keys(lambda _: None)
        await keys.ask_agent(str(tmp_path / "nobody"))
        return keys.held(str(tmp_path / "nobody")), keys.held("")

    assert asyncio.run(ask()) == (None, 0)
