"""The lock file fits what pyproject.toml asks for, and the executable file holds and names what it locks."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from atlctl.packaging import tree
from atlctl.packaging.dists import ROOT, BuildError
from tests.packaging.test_executable import unpack
from tests.support.needs import needs


def wanted_by(lines: list[str], extras: set[str]) -> list[Requirement]:
    """Those of the requirements that are for this platform, and for one of `extras` or for none."""
    found = map(Requirement, lines)
    return [
        one
        for one in found
        if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in (*extras, ""))
    ]


def test_it_has_what_pyproject_asks_for_and_all_that_this_needs() -> None:
    """Every requirement is locked, in a version that it allows. Without an index: as installed here."""
    versions = {name: version for name, version, _ in tree.lock_entries()}
    open_ones = wanted_by(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"], set())
    seen: set[str] = set()
    while open_ones:
        requirement = open_ones.pop()
        name = tree.canonical(requirement.name)
        assert name in versions, f"{requirement}: not in {tree.LOCK.name}; make lock"
        assert requirement.specifier.contains(versions[name]), f"{requirement}: {versions[name]} is locked; make lock"
        if name not in seen or requirement.extras:
            open_ones += wanted_by(importlib.metadata.requires(name) or [], requirement.extras)
        seen.add(name)
    platforms = {name for name, _, conditional in tree.lock_entries() if conditional}
    assert set(versions) - seen <= platforms, "no longer needed; make lock"


def test_each_entry_has_hashes_and_none_names_a_place() -> None:
    entries = re.split(r"^(?=\w)", tree.LOCK.read_text(), flags=re.MULTILINE)[1:]
    assert len(entries) == len(list(tree.lock_entries())) > 20
    assert all(re.search(r"--hash=sha256:[0-9a-f]{64}\b", entry) for entry in entries)
    assert not re.search(r"://|--(extra-)?index|--find-links", tree.LOCK.read_text())


def install(folder: Path, name: str, version: str) -> None:
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def test_another_version_than_the_locked_one_is_not_carried(tmp_path: Path) -> None:
    for name, version, conditional in tree.lock_entries():
        if not conditional:
            install(tmp_path / "same", name, version)
            install(tmp_path / "other", name, "0.0.1" if name == "typer" else version)
            if name != "typer":
                install(tmp_path / "missing", name, version)
    assert "typer" in [package.name for package in tree.locked([str(tmp_path / "same")])]
    with pytest.raises(BuildError, match=r"typer: 0\.0\.1 is installed, and lock\.txt has "):
        tree.locked([str(tmp_path / "other")])
    with pytest.raises(BuildError, match=r"typer: is missing, and lock\.txt has "):
        tree.locked([str(tmp_path / "missing")])


def test_a_wheel_of_another_hash_is_not_carried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, built: Any) -> None:
    """A wheel of the right name and version, and other bytes than the lock file has."""
    name, version = built[1].name.split("-")[:2]
    lock = tmp_path / "lock.txt"
    monkeypatch.setattr(tree, "LOCK", lock)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(built[1].parent))
    for digest, fits in ((hashlib.sha256(built[1].read_bytes()).hexdigest(), True), ("0" * 64, False)):
        lock.write_text(f"{name}=={version} --hash=sha256:{digest}\n")
        if fits:
            tree.fetch(tmp_path / "fits")
            assert [package.name for package in tree.locked([str(tmp_path / "fits")])] == [name]
        else:
            with pytest.raises(BuildError, match="pip could not install"):
                tree.fetch(tmp_path / "other")


@needs("cc")
def test_the_sbom_and_the_licences_are_of_what_is_carried(executable: Path) -> None:
    sbom = json.loads(executable.with_name(f"{executable.name}.cdx.json").read_text())
    assert (sbom["bomFormat"], sbom["specVersion"]) == ("CycloneDX", "1.6")
    whole = sbom["metadata"]["component"]
    assert whole["hashes"] == [{"alg": "SHA-256", "content": hashlib.sha256(executable.read_bytes()).hexdigest()}]
    packed = dict(unpack(executable))
    told = {
        match[1] for name in packed if (match := re.fullmatch(r"lib/python[^/]*/([^/]+)\.dist-info/METADATA", name))
    }
    packages = {one["purl"] for one in sbom["components"] if one.get("purl", "").startswith("pkg:pypi/")}
    carried = {f"pkg:pypi/{tree.canonical(name)}@{version}" for name, _, version in (x.rpartition("-") for x in told)}
    assert packages == carried - {f"pkg:pypi/atlctl@{whole['version']}"}
    assert packages == {f"pkg:pypi/{tree.canonical(one.name)}@{one.version}" for one in tree.locked(sys.path)}
    libraries = {one["hashes"][0]["content"] for one in sbom["components"] if "hashes" in one}
    beside = {name for name in packed if re.fullmatch(r"lib/[^/]+", name)} - {"lib/python"}
    assert libraries == {hashlib.sha256(packed[name]).hexdigest() for name in beside}
    listed = executable.with_name(f"{executable.name}.licenses.txt").read_text()
    assert len(listed.splitlines()) == 1 + len(sbom["components"])
    assert "unknown" not in listed
    assert "asyncssh 2." in listed
    assert re.search(r"^libc\.so\.6 2\.\d+: LGPL-2\.1-or-later$", listed, re.MULTILINE)
