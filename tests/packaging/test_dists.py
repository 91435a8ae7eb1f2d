"""Wheel and sdist: what is in them, what they say of themselves."""

from __future__ import annotations

import email
import tarfile
import tomllib
import zipfile
from email.message import Message
from pathlib import Path

import pytest

from atlctl import __version__
from atlctl.packaging import dists

CHECKOUT = Path(__file__).parents[2]
INFO = f"atlctl-{__version__}.dist-info"
SHARE = f"atlctl-{__version__}.data/data/share"


def package() -> dict[str, bytes]:
    """What runs: the whole package but what builds it."""
    paths = [path for path in (CHECKOUT / "atlctl").rglob("*") if path.is_file()]
    names = {path.relative_to(CHECKOUT).as_posix(): path for path in paths}
    left_out = ("/__pycache__/", "atlctl/packaging/", ".po")
    return {name: path.read_bytes() for name, path in names.items() if not any(part in name for part in left_out)}


def shared() -> dict[str, bytes]:
    """Completion scripts and man pages, where shells and man look them up."""
    found = {
        "bash-completion/completions/atlctl": CHECKOUT / "completions/atlctl",
        "zsh/site-functions/_atlctl": CHECKOUT / "completions/_atlctl",
        "fish/vendor_completions.d/atlctl.fish": CHECKOUT / "completions/atlctl.fish",
    }
    for path in (CHECKOUT / "docs/man").rglob("*.1"):
        found[f"man/{path.relative_to(CHECKOUT / 'docs/man').as_posix()}"] = path
    return {f"{SHARE}/{name}": path.read_bytes() for name, path in found.items()}


def read(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def metadata(wheel: Path) -> Message:
    return email.message_from_bytes(read(wheel)[f"{INFO}/METADATA"])


def test_the_wheel_holds_what_runs_and_nothing_else(built: tuple[Path, Path]) -> None:
    found = read(built[1])
    told = {name for name in found if name.startswith(f"{INFO}/")}
    assert {name.removeprefix(f"{INFO}/") for name in told} == {
        *("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE", "top_level.txt")
    }
    assert {name: data for name, data in found.items() if name not in told} == {**package(), **shared()}


def test_the_wheel_has_pages_in_both_languages(built: tuple[Path, Path]) -> None:
    names = read(built[1])
    assert {f"{SHARE}/man/man1/atlctl.1", f"{SHARE}/man/zh_CN/man1/atlctl.1"} <= set(names)
    assert "atlctl/py.typed" in names


def test_the_sdist_holds_no_tests(built: tuple[Path, Path]) -> None:
    with tarfile.open(built[0]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {name.partition("/")[0] for name in names} == {
        *("", "LICENSE", "PKG-INFO", "README.md", "atlctl", "atlctl.egg-info", "completions", "docs", "pyproject.toml"),
        "setup.cfg",
    }
    assert {name.split("/")[1] for name in names if name.startswith("docs/")} == {"man"}


def test_the_wheel_runs_everywhere_and_says_what_it_is(built: tuple[Path, Path]) -> None:
    assert built[1].name == f"atlctl-{__version__}-py3-none-any.whl"
    told, project = metadata(built[1]), tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    assert (told["Name"], told["Version"], told["Summary"]) == ("atlctl", __version__, project["description"])
    assert (told["License-Expression"], told.get_all("License-File")) == ("Apache-2.0", ["LICENSE"])
    assert told["Requires-Python"] == project["requires-python"]
    assert told["Description-Content-Type"] == "text/markdown"
    assert told.get_payload(decode=True) == (CHECKOUT / "README.md").read_bytes()
    assert "Typing :: Typed" in told.get_all("Classifier", [])
    assert read(built[1])[f"{INFO}/entry_points.txt"] == b"[console_scripts]\natlctl = atlctl.__main__:main\n"


def test_torch_is_an_extra_alone(built: tuple[Path, Path]) -> None:
    needed = metadata(built[1]).get_all("Requires-Dist", [])
    assert [line for line in needed if "torch" in line and "extra ==" not in line] == []
    assert any(line.startswith("torch") and 'extra == "smoke"' in line for line in needed)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """One with an almost empty package."""
    root = tmp_path / "checkout"
    root.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        (root / name).write_bytes((CHECKOUT / name).read_bytes())
    for name in ("completions", "docs/man"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).symlink_to(CHECKOUT / name)
    (root / "atlctl").mkdir()
    (root / "atlctl/__init__.py").write_text('__version__ = "9"\n')
    return root


def test_the_same_sources_give_the_same_bytes(checkout: Path, tmp_path: Path) -> None:
    one, other = (dists.build(tmp_path / name, checkout)[1] for name in ("one", "other"))
    assert one.name == other.name == "atlctl-9-py3-none-any.whl"
    assert one.read_bytes() == other.read_bytes()


def test_what_a_former_build_left_is_not_taken_along(checkout: Path, tmp_path: Path) -> None:
    """A `build/` folder of setuptools, whose old modules would come back in every later wheel."""
    (checkout / "build/lib/atlctl").mkdir(parents=True)
    (checkout / "build/lib/atlctl/old.py").touch()
    _, wheel = dists.build(tmp_path / "out", checkout)
    assert [name for name in read(wheel) if name.startswith("atlctl/")] == ["atlctl/__init__.py"]


def test_an_error_of_the_build_is_shown(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for name in ("README.md", "LICENSE"):
        (tmp_path / name).touch()
    for name in ("atlctl", "completions", "docs"):
        (tmp_path / name).mkdir()
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\nversion = 'none'\n")
    with pytest.raises(dists.BuildError, match="build_sdist"):
        dists.build(tmp_path / "out", tmp_path)
    assert "none" in capfd.readouterr().err
