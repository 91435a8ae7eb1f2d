"""Kubeconfigs and service accounts."""

from __future__ import annotations

import base64
import json
import os
import ssl
import stat
import subprocess
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from atlctl.backends.kubernetes import access, kubeconfig
from atlctl.backends.kubernetes.access import Access, load
from atlctl.backends.kubernetes.kubeconfig import available, kubeconfig_paths
from atlctl.jobs.errors import NotAllowed, UsageError

TOKEN = "canary-token-4711"


@pytest.fixture(autouse=True)
def _no_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (
        "KUBECONFIG",
        "KUBERNETES_SERVICE_HOST",
        "KUBERNETES_SERVICE_PORT",
        "HTTPS_PROXY",
        "https_proxy",
        "NO_PROXY",
        "no_proxy",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture(scope="module")
def pair() -> tuple[bytes, bytes]:
    """A self-signed certificate and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "bob")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(1))
        .not_valid_after(now + timedelta(1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return made.public_bytes(serialization.Encoding.PEM), private


def config(user: dict[str, Any] | None = None, cluster: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "clusters": [{"name": "c", "cluster": {"server": "https://api.test:6443/", **(cluster or {})}}],
        "users": [{"name": "bob", "user": {"token": TOKEN} if user is None else user}],
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "bob", "namespace": "team"}}],
        **more,
    }


def write(path: Path, content: dict[str, Any]) -> Path:
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.fixture
def kube(tmp_path: Path) -> Path:
    return tmp_path / "config"


def read(path: Path, **more: Any) -> Access:
    return load(str(path), **more)


def test_a_token(kube: Path) -> None:
    found = read(write(kube, config()))
    assert (found.server, found.context, found.namespace) == ("https://api.test:6443", "here", "team")
    assert found.headers() == {"Authorization": f"Bearer {TOKEN}"}
    assert found.headers_at_hand() == found.headers()
    assert TOKEN not in found.source


def test_the_namespace_of_the_option_wins(kube: Path) -> None:
    assert read(write(kube, config()), namespace="mine").namespace == "mine"


def test_a_context_without_a_namespace_means_default(kube: Path) -> None:
    contexts = [{"name": "here", "context": {"cluster": "c", "user": "bob"}}]
    assert read(write(kube, config(contexts=contexts))).namespace == "default"


def test_a_list_of_files_is_merged_and_the_first_current_context_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = write(tmp_path / "a", {**config(), "users": [], "clusters": []})
    other = {**config(), "current-context": "there"}
    other["contexts"].append({"name": "there", "context": {"cluster": "c", "user": "bob"}})
    second = write(tmp_path / "b", other)
    monkeypatch.setenv("KUBECONFIG", f"{first}:{tmp_path / 'none'}:{second}")
    assert kubeconfig_paths(None) == [str(first), str(second)]
    found = load()
    assert (found.context, found.server) == ("here", "https://api.test:6443")
    assert load(context="there").context == "there"


def test_the_home_folder_has_the_default(tmp_path: Path) -> None:
    assert not available()
    (tmp_path / ".kube").mkdir()
    write(tmp_path / ".kube" / "config", config())
    assert available()
    assert load().context == "here"


def test_tls_settings(kube: Path, pair: tuple[bytes, bytes]) -> None:
    authority = base64.b64encode(pair[0]).decode()
    cluster = {"certificate-authority-data": authority, "tls-server-name": "inner.test", "proxy-url": "http://p:3128"}
    found = read(write(kube, config(cluster=cluster)))
    assert (found.tls_name, found.proxy) == ("inner.test", "http://p:3128")
    assert found.tls is not None
    assert found.tls.verify_mode is ssl.CERT_REQUIRED
    assert found.tls.check_hostname
    assert len(found.tls.get_ca_certs()) == 1


def test_authorities_of_a_system_that_python_was_not_built_for(
    kube: Path, pair: tuple[bytes, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in the single executable: its OpenSSL uses the paths of the build system."""
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path / "none"))
    (tmp_path / "bundle.pem").write_bytes(pair[0])
    monkeypatch.setattr(access, "_AUTHORITIES", (str(tmp_path / "absent"), str(tmp_path / "bundle.pem")))
    found = read(write(kube, config(cluster={})))
    assert found.tls is not None
    assert len(found.tls.get_ca_certs()) == 1


def test_a_certificate_that_is_not_checked(kube: Path) -> None:
    found = read(write(kube, config(cluster={"insecure-skip-tls-verify": True})))
    assert found.tls is not None
    assert (found.tls.verify_mode, found.tls.check_hostname) == (ssl.CERT_NONE, False)


def test_keys_in_the_kubeconfig_leave_no_file_behind(
    kube: Path, pair: tuple[bytes, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    for more in ({}, {"username": "bob", "password": "pw"}):  # the second belongs to the package
        assert read(write(kube, config({**data_of(pair), **more}))).tls is not None
        assert os.listdir(temporary) == []


def test_the_proxy_of_the_environment(kube: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.test:8080")
    assert read(write(kube, config())).proxy == "http://proxy.test:8080"
    monkeypatch.setenv("NO_PROXY", "api.test")
    assert read(write(kube, config())).proxy is None


def data_of(pair: tuple[bytes, bytes]) -> dict[str, Any]:
    parts = zip(("certificate", "key"), pair, strict=True)
    return {f"client-{what}-data": base64.b64encode(data).decode() for what, data in parts}


def test_files_are_relative_to_the_kubeconfig(
    kube: Path, pair: tuple[bytes, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    (tmp_path / "pki").mkdir()
    for name, content in zip(("ca.crt", "key"), pair, strict=True):
        (tmp_path / "pki" / name).write_bytes(content)
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    for more in ({"tokenFile": "token"}, plugin(tmp_path, credential(TOKEN))):
        user = {"client-certificate": "pki/ca.crt", "client-key": "pki/key", **more}
        found = read(write(kube, config(user, {"certificate-authority": "pki/ca.crt"})))
        assert found.headers() == {"Authorization": f"Bearer {TOKEN}"}
        assert found.tls is not None
        assert len(found.tls.get_ca_certs()) == 1


@pytest.mark.parametrize("key", ["certificate-authority", "client-certificate", "tokenFile"])
def test_a_file_that_is_not_there(kube: Path, key: str) -> None:
    stated = {key: "none"}
    with pytest.raises(UsageError, match="none"):
        read(write(kube, config({}, stated) if key == "certificate-authority" else config(stated)))


@pytest.mark.parametrize("data", ["no base64!", "bm8gY2VydGlmaWNhdGU=", 7])
def test_data_that_cannot_be_used(kube: Path, data: object) -> None:
    for user, cluster in (({}, {"certificate-authority-data": data}), ({"client-certificate-data": data}, {})):
        with pytest.raises(UsageError, match="cannot be used"):
            read(write(kube, config(user, cluster)))


def test_data_come_before_a_file(kube: Path, pair: tuple[bytes, bytes]) -> None:
    user = {"client-certificate": "none", "client-key": "none", **data_of(pair)}
    assert read(write(kube, config(user))).headers() == {}


def test_a_token_file_that_is_replaced(kube: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").write_text(TOKEN)
    found = read(write(kube, config({"tokenFile": str(tmp_path / "token")})))
    for text, header in (("next", "Bearer next"), ("", "Bearer next")):  # empty: it is being written
        (tmp_path / "token").write_text(text)
        monkeypatch.setattr(found, "_read_at", float("-inf"))
        assert found.headers() == {"Authorization": header}


def test_a_name_and_a_password(kube: Path) -> None:
    found = read(write(kube, config({"username": "bob", "password": "pw"})))
    assert found.headers() == {"Authorization": f"Basic {base64.b64encode(b'bob:pw').decode()}"}


def test_the_first_entry_of_a_name_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = write(tmp_path / "a", {**config(), "current-context": ""})
    second = write(tmp_path / "b", config({"token": "second"}, {"server": "https://second.test"}))
    monkeypatch.setenv("KUBECONFIG", f"{first}:{second}")
    found = load()
    assert (found.server, found.headers()) == ("https://api.test:6443", {"Authorization": f"Bearer {TOKEN}"})


def test_contexts_and_logins(kube: Path, tmp_path: Path) -> None:
    write(kube, config(plugin(tmp_path, "exit 1")))
    assert kubeconfig.contexts(str(kube)) == {"here": "team"}
    assert kubeconfig.runs_program(str(kube))
    assert not kubeconfig.runs_program(str(kube), "nowhere")
    assert not kubeconfig.runs_program(str(write(kube, config())))


def plugin(folder: Path, text: str) -> dict[str, Any]:
    path = folder / "plugin"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(path), "interactiveMode": "Never"}}


def credential(token: str, expires: str | None = None) -> str:
    status = {"token": token, **({"expirationTimestamp": expires} if expires else {})}
    made = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}
    return f"cat <<'END'\n{json.dumps(made)}\nEND"


def test_an_exec_plugin(kube: Path, tmp_path: Path) -> None:
    found = read(write(kube, config(plugin(tmp_path, credential("from-plugin")))))
    assert found.headers() == {"Authorization": "Bearer from-plugin"}


def test_an_exec_plugin_is_run_again_after_a_refusal(kube: Path, tmp_path: Path) -> None:
    found = read(write(kube, config(plugin(tmp_path, credential("old")))))
    refused = found.headers()
    plugin(tmp_path, credential("new"))
    assert found.headers() == refused
    assert found.renew(refused)
    assert found.headers() == {"Authorization": "Bearer new"}
    assert found.renew(refused)  # another caller was faster
    assert not found.renew(found.headers())


def test_an_exec_plugin_that_fails_is_no_anonymous_user(kube: Path, tmp_path: Path) -> None:
    with pytest.raises(NotAllowed, match="process returned 3") as caught:
        read(write(kube, config(plugin(tmp_path, "echo no login >&2; exit 3"))))
    assert caught.value.hint is not None


def test_a_plugin_that_is_not_there(kube: Path) -> None:
    user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "/nonexistent/plugin"}}
    with pytest.raises(NotAllowed, match="nonexistent"):
        read(write(kube, config(user)))


def test_impersonation(kube: Path) -> None:
    found = read(write(kube, config({"token": TOKEN, "as": "eve", "as-uid": "7"})))
    assert found.headers() == {
        "Authorization": f"Bearer {TOKEN}",
        "Impersonate-User": "eve",
        "Impersonate-Uid": "7",
    }
    with pytest.raises(UsageError, match="groups"):
        read(write(kube, config({"token": TOKEN, "as": "eve", "as-groups": ["admins"]})))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "contexts: [x]",
        "contexts: 7",
        "contexts: [{name: x, context: 7}]",
        "[" * 100_000,
        "a: [",
        "[]",
        "just words",
        "current-context: x",
        "current-context: x\ncontexts: [{name: x}]",
        "\0",
    ],
)
def test_a_kubeconfig_that_is_none(kube: Path, text: str) -> None:
    kube.write_text(text)
    with pytest.raises(UsageError) as caught:
        load(str(kube))
    assert str(kube) in caught.value.message or "context" in caught.value.message
    assert "\n" not in caught.value.message


def test_what_is_not_there(kube: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"kubeconfig .* not found"):
        load(str(kube))
    with pytest.raises(UsageError, match="no cluster is configured"):
        load()
    with pytest.raises(UsageError, match="--context"):
        load(context="x")
    with pytest.raises(UsageError, match="has no context nowhere") as caught:
        read(write(kube, config()), context="nowhere")
    assert caught.value.hint == "there are: here"


@pytest.fixture
def service_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pair: tuple[bytes, bytes]) -> Path:
    folder = tmp_path / "account"
    folder.mkdir()
    (folder / "token").write_text(TOKEN)
    (folder / "ca.crt").write_bytes(pair[0])
    (folder / "namespace").write_text("own\n")
    monkeypatch.setattr(kubeconfig, "SERVICE_ACCOUNT", str(folder))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    return folder


def test_a_service_account(service_account: Path) -> None:
    assert available()
    found = load()
    assert (found.server, found.context, found.namespace) == ("https://10.0.0.1:443", None, "own")
    assert found.headers() == {"Authorization": f"Bearer {TOKEN}"}


def test_a_token_that_rotates(service_account: Path) -> None:
    found = load()
    refused = found.headers()
    (service_account / "token").write_text("rotated")
    assert found.renew(refused)
    assert found.headers() == {"Authorization": "Bearer rotated"}


def test_a_kubeconfig_comes_before_the_service_account(service_account: Path, kube: Path) -> None:
    assert read(write(kube, config())).context == "here"


def test_the_question_whether_there_is_a_cluster_imports_nothing() -> None:
    script = (
        "import sys; from atlctl.backends.kubernetes import kubeconfig; kubeconfig.available(); "
        "print([name for name in ('kubernetes', 'aiohttp', 'yaml') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_a_service_account_is_read_without_the_package(service_account: Path) -> None:
    script = (
        "import sys; from atlctl.backends.kubernetes import access, kubeconfig; "
        f"kubeconfig.SERVICE_ACCOUNT = {str(service_account)!r}; print(access.load().headers()); "
        "print([name for name in ('kubernetes', 'yaml') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == [str({"Authorization": f"Bearer {TOKEN}"}), "[]"]


def test_aiohttp_reads_no_authorities_of_the_system(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "mine"))
    script = (
        "import os, ssl; from atlctl.backends.kubernetes import websocket; import aiohttp.connector as c; "
        "print(c._SSL_CONTEXT_VERIFIED.get_ca_certs(), c._SSL_CONTEXT_VERIFIED.verify_mode is ssl.CERT_REQUIRED); "
        "print(os.environ['SSL_CERT_FILE'])"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == ["[] True", str(tmp_path / "mine")]


def test_files_of_the_package_are_private(kube: Path) -> None:
    """The package writes a refreshed token to the user's file, whose mode is kept."""
    write(kube, config()).chmod(0o600)
    read(kube)
    assert stat.S_IMODE(kube.stat().st_mode) == 0o600
