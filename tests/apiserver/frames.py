"""Subprotocols of exec over WebSockets: encoding of channels and of exit statuses."""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Sequence

STDIN, STDOUT, STDERR, ERROR, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255

V5 = "v5.channel.k8s.io"
V4 = "v4.channel.k8s.io"
#: Supported protocols, the preferred one first.
PROTOCOLS = (V5, V4, "channel.k8s.io", "base64.channel.k8s.io")


def choose(offered: Sequence[str]) -> str | None:
    """The protocol for a client; "" if it offered none, None if the server supports none of them."""
    if not offered:
        return ""
    return next((protocol for protocol in PROTOCOLS if protocol in offered), None)


def encode(protocol: str, channel: int, data: bytes) -> bytes | str:
    """A message: bytes for a binary one, text for a base64 protocol."""
    if protocol.startswith("base64"):
        return f"{channel}{base64.b64encode(data).decode()}"
    return bytes([channel]) + data


def decode(protocol: str, message: bytes | str) -> tuple[int, bytes]:
    """Channel and data. Raises ValueError for an invalid message."""
    if isinstance(message, str):
        return int(message[:1]), base64.b64decode(message[1:])
    if not message:
        raise ValueError("an empty message")
    return message[0], message[1:]


def exited(protocol: str, argv: Sequence[str], code: int) -> bytes:
    """Message of channel 3 for a command that ran to its end."""
    if code == 0:
        return b'{"metadata":{},"status":"Success"}' if protocol in (V5, V4) else b""
    words = f"command terminated with exit code {code}"
    if protocol != V5:
        words = f"error executing command [{' '.join(argv)}], exit code {code}"
    words = f"command terminated with non-zero exit code: {words}"
    if protocol not in (V5, V4):
        return words.encode()
    causes = [{"reason": "ExitCode", "message": str(code)}]
    return _status(words, "NonZeroExitCode", {"causes": causes})


def not_started(protocol: str, text: str) -> bytes:
    """Message of channel 3 for a command that the runtime could not start."""
    words = "error executing command in container: failed to exec in container: failed to start exec "
    words += f'"{secrets.token_hex(32)}": {text}'
    cause = words if protocol != V5 else f"Internal error occurred: {words}"
    message = f"Internal error occurred: {cause}"
    if protocol not in (V5, V4):
        return message.encode()
    return _status(message, "InternalError", {"causes": [{"message": cause}]}, 500)


def _status(message: str, reason: str, details: object, code: int | None = None) -> bytes:
    status = {"metadata": {}, "status": "Failure", "message": message, "reason": reason, "details": details}
    if code is not None:
        status["code"] = code
    return json.dumps(status, separators=(",", ":"), ensure_ascii=False).encode()


def raw_frame(payload: bytes, part: int) -> bytes:
    """The first `part` bytes of an unmasked binary WebSocket frame, for a connection that breaks inside it."""
    if len(payload) < 126:
        head = bytes([0x82, len(payload)])
    elif len(payload) < 65536:
        head = bytes([0x82, 126]) + len(payload).to_bytes(2, "big")
    else:
        head = bytes([0x82, 127]) + len(payload).to_bytes(8, "big")
    return (head + payload)[:part]
