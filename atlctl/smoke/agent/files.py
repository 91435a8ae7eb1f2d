"""Small files of /proc and /sys, where one that is missing or not allowed is an empty one."""

from __future__ import annotations

import os


def read(path: str, limit: int = 65536) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(limit)
    except OSError:
        return b""


def text(path: str, limit: int = 65536) -> str:
    return read(path, limit).decode("utf-8", "backslashreplace").strip()


def names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []
