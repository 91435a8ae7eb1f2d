"""Names that only a server knows, in real shells: TAB, a look in the background, TAB; and caches that are forged."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from atlctl.cli.completion import cache
from tests.apiserver.handle import Server
from tests.integration.test_kubernetes import start
from tests.shell.shells import HOSTILE, SHELLS, until


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(namespace="ml") as made:
        start(made, "tuner", "sleep 4000", "sleep 4000", run=False)
        made.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "research"}})
        yield made


def quiet():
    """No refresh runs any more."""
    return not os.path.lexists(os.path.join(cache.folder(), cache.LOCK))


def kinds():
    """Kinds of names that the cache has."""
    found = []
    for path in Path(cache.folder()).glob("*.json"):
        entry = json.loads(path.read_text())
        found += [entry["scope"][0]] if entry["names"] else []
    return found


@pytest.mark.parametrize("shell", SHELLS)
def test_a_cluster_is_known_at_the_second_tab(shell, open_shell, server, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig))
    opened = open_shell(shell)
    for first in ("atlctl ps tun\t", "atlctl -n rese\t", "atlctl --context te\t"):
        opened.type(first)
        opened.abandon_line()
        until(quiet)
    assert sorted(kinds()) == ["contexts", "jobs", "namespaces"]
    for typed, line in [
        ("atlctl ps tun\t", "ps|tuner"),
        ("atlctl exec -j tuner -w worker-1\t--role wor\t-- true", "exec|-j|tuner|-w|worker-1|--role|worker|--|true"),
        ("atlctl logs -w worker-0,worker-\t", "logs|-w|worker-0,worker-1"),
        ("atlctl -n rese\tjobs", "-n|research|jobs"),
        ("atlctl jobs --context=te\t-A", "jobs|--context=test|-A"),
    ]:
        opened.type(typed)
        assert opened.line() == line
    until(quiet)


@pytest.mark.parametrize("shell", SHELLS)
def test_a_cluster_that_is_not_there_is_silent_and_not_asked_again(shell, open_shell, server, isolated, monkeypatch):
    config = yaml.safe_load(server.kubeconfig.read_text())
    config["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    kubeconfig = isolated / "dead.yaml"
    kubeconfig.write_text(yaml.safe_dump(config))
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    opened = open_shell(shell)
    opened.type("atlctl stop x\t")
    until(lambda: list(Path(cache.folder()).glob("jobs-*.json")) and quiet())
    (tried,) = Path(cache.folder()).glob("jobs-*.json")
    before = tried.stat().st_mtime_ns
    opened.type("\t\t\x01\x0becho ali''ve\r")
    assert "rror" not in opened.expect("alive")
    opened.type("atlctl stop x\t\r")
    opened.expect("[[stop|x]]")
    assert quiet()
    assert tried.stat().st_mtime_ns == before


def forged(scope: cache.Scope, names: dict[str, list[str]]) -> bytes:
    """A file of the cache that is as it should be but for its names."""
    now = time.time()
    about = {
        name: {"seen": now, "active": True, "workers": workers, "roles": workers} for name, workers in names.items()
    }
    entry = {"schema": cache.SCHEMA, "scope": scope.key, "stamp": scope.stamp(), "listed": now, "tried": 0}
    return json.dumps({**entry, "names": about}).encode()


def plant(scope: cache.Scope | None, names: dict[str, list[str]]) -> Path:
    assert scope is not None
    os.makedirs(cache.folder(), mode=0o700, exist_ok=True)
    path = Path(scope.path())
    path.write_bytes(forged(scope, names))
    path.chmod(0o600)
    return path


@pytest.mark.parametrize("shell", SHELLS)
def test_hostile_names_from_elsewhere_run_nothing(shell, open_shell, state, isolated, monkeypatch):
    kubeconfig = isolated / "kubeconfig"
    contexts = [{"name": name, "context": {"namespace": name}} for name in (*HOSTILE, "zz-1", "zz-2")]
    kubeconfig.write_text(yaml.safe_dump({"contexts": contexts, "current-context": "$(touch F)"}))
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    hosts = isolated / "hosts"
    hosts.write_text("\n".join([*HOSTILE, "zz-[1-2]", "$(touch F)[1-2]"]))
    for name in (*HOSTILE, "zz-1", "zz-2"):
        record = state.parent / "ssh" / name.replace("/", "_") / "job.json"
        record.parent.mkdir(parents=True)
        record.write_text(json.dumps({"workers": [{"name": worker} for worker in (*HOSTILE, "hh-1", "hh-2")]}))
    names = {name: [*HOSTILE, "ww-1", "ww-2"] for name in (*HOSTILE, "zz-1", "zz-2")}
    plant(cache.cluster_scope("jobs"), names)
    plant(cache.cluster_scope("namespaces"), names)
    opened = open_shell(shell)
    for typed, last in [
        ("atlctl stop \t\t", "zz-2"),
        ("atlctl --backend kubernetes exec -j zz-1 -w \t\t", "ww-2"),
        ("atlctl exec -j zz-1 --role \t\t", "ww-2"),
        ("atlctl --backend=kubernetes cp -j zz-1 \t\t", "ww-2:"),
        ("atlctl ssh rm \t\t", "zz-2"),
        ("atlctl exec -j zz-1 -w \t\t", "hh-2"),
        ("atlctl -n \t\t", "zz-2"),
        (f"atlctl --hostfile {hosts} exec -w \t\t", "zz-2"),
    ]:
        opened.type(typed)
        shown = opened.expect(last)
        assert "touch" not in shown.replace(typed.strip(), "")
        opened.abandon_line()
    opened.type("atlctl --context \t")  # the look that this starts reads the hostile kubeconfig
    opened.abandon_line()
    until(lambda: "contexts" in kinds() and quiet())
    opened.type("atlctl --context \t\t")
    assert "touch" not in opened.expect("zz-2")
    opened.abandon_line()
    assert list(opened.work.iterdir()) == []
    until(quiet)


def _garbage(path):
    path.write_bytes(b"\x00\xff{{{")


def _huge(path):
    with path.open("wb") as file:
        file.truncate(1 << 40)


def _deep(path):
    path.write_bytes(b"[" * 500_000)


def _pipe(path):
    path.unlink()
    os.mkfifo(path)


def _link(path):
    path.rename(path.with_suffix(".real"))
    path.symlink_to(path.with_suffix(".real"))


def _folder(path):
    path.unlink()
    path.mkdir()


def _others(path):
    path.chmod(0o666)


def _owner(path):
    os.chown(path, 65534, 65534)


def _linked_folder(path):
    folder = Path(cache.folder())
    folder.rename(folder.with_name("elsewhere"))
    folder.symlink_to("elsewhere")


@pytest.mark.parametrize("shell", SHELLS)
def test_a_cache_that_is_none_is_silent(shell, open_shell, isolated, monkeypatch):
    """No hang, no word, no name of it; and what else is known is still completed."""
    kubeconfig = isolated / "kubeconfig"
    kubeconfig.write_text("contexts: []")
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    opened = open_shell(shell)
    spoils = [_garbage, _huge, _deep, _pipe, _link, _folder, _others, _linked_folder]
    if os.geteuid() == 0:  # who else may give a file away
        spoils.insert(0, _owner)
    for spoil in spoils:
        path = plant(cache.cluster_scope("jobs"), {"zz-cached": ["worker-0"]})
        opened.type("atlctl stop zz\t\r")
        opened.expect("[[stop|zz-cached]]")
        spoil(path)
        opened.type("atlctl stop zz\t\r")
        assert opened.expect("[[stop|zz]]").count("rror") == 0, spoil
        opened.type("atlctl com\tba\t\r")
        opened.expect("[[completion|bash]]")
        until(quiet)
        for left in (path, path.with_suffix(".real")):
            if left.is_dir() and not left.is_symlink():
                left.rmdir()
            else:
                left.unlink(missing_ok=True)
    assert list(opened.work.iterdir()) == []
