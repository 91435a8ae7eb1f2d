"""RDMA devices as the kernel shows them. A card that is stuck holds whoever asks for its state, hence this runs in a
child (`apart`)."""

from __future__ import annotations

import re

from . import files, streams

TYPE_CHECKING = False  # that of `typing` takes long to import
if TYPE_CHECKING:
    from typing import Any

_CLASS = "/sys/class/infiniband"
#: Entries of one port's table of addresses that are looked at.
_GIDS = 256
#: What stands in a place of the table that is not used.
_NO_GID = re.compile(r"(fe80:0000:0000:0000:|0000:0000:0000:0000:)0000:0000:0000:0000")


def devices(root: str = "") -> list[str]:
    """Their names: this asks no card anything."""
    return files.names(root + _CLASS)


def main(argument: dict[str, Any]) -> None:
    streams.tell(1, {"ports": ports(argument["root"])})


def ports(root: str = "") -> list[dict[str, Any]]:
    """Each port: `device`, `port`, `state`, `rate`, `layer`, how many `gids` it has and of which types."""
    found = []
    for device in devices(root):
        top = f"{root}{_CLASS}/{device}"
        for port in files.names(top + "/ports"):
            folder = f"{top}/ports/{port}"
            used = [n for n in files.names(folder + "/gids")[:_GIDS] if _used(files.text(f"{folder}/gids/{n}", 64))]
            types = {files.text(f"{folder}/gid_attrs/types/{n}", 64) for n in used}
            found.append(
                {
                    "device": device,
                    "port": port,
                    "state": files.text(folder + "/state", 64).rpartition(":")[2].strip(),
                    "physical": files.text(folder + "/phys_state", 64).rpartition(":")[2].strip(),
                    "rate": files.text(folder + "/rate", 64),
                    "layer": files.text(folder + "/link_layer", 64),
                    "gids": len(used),
                    "types": sorted(types - {""}),
                    "firmware": files.text(top + "/fw_ver", 64),
                }
            )
    return found


def _used(gid: str) -> bool:
    return bool(gid) and not _NO_GID.fullmatch(gid)
