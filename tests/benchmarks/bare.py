"""The least that execs cost with aiohttp: one WebSocket for each pod, read to its Status.

`bare.py URL CA TOKEN POD...` is a program of its own, so that nothing of atlctl is in its figures. Like `exec`, it has
64 connections in the making at most. Exits with 1 where a command did not succeed.
"""

from __future__ import annotations

import asyncio
import ssl
import sys

import aiohttp


async def main(url: str, authority: str, token: str, pods: list[str]) -> int:
    tls = ssl.create_default_context(cafile=authority)
    making = asyncio.Semaphore(64)
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ssl=tls), headers={"Authorization": f"Bearer {token}"}
    ) as session:

        async def one(pod: str) -> bool:
            path = f"{url}/api/v1/namespaces/default/pods/{pod}/exec?command=true&stdout=true&stderr=true"
            async with making:
                socket = await session.ws_connect(path, protocols=("v5.channel.k8s.io",), max_msg_size=0)
            status = b""
            async with socket:
                async for message in socket:
                    if message.data[:1] == b"\3":
                        status = message.data
            return b'"Success"' in status

        return 0 if all(await asyncio.gather(*map(one, pods))) else 1


if __name__ == "__main__":
    server, ca, bearer, *names = sys.argv[1:]
    sys.exit(asyncio.run(main(server, ca, bearer, names)))
