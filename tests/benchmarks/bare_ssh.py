"""The least that commands on hosts cost with asyncssh: one connection and one session for each, 64 in the making.

`bare_ssh.py PORT USER KEY KNOWN_HOSTS HOSTS COMMAND` is a program of its own, so that nothing of atlctl is in its
figures. HOSTS is a file of names. What costs asyncssh most is left out: the key is loaded once, known_hosts is parsed
once, no agent and no configuration is asked, the cheapest cipher comes first. Output goes to stdout as it is. Exits
with 1 where a command did not succeed.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import asyncssh


async def main(port: int, user: str, key: str, known: str, hosts: list[str], command: str) -> int:
    entries = asyncssh.import_known_hosts(known)
    options = asyncssh.SSHClientConnectionOptions(
        config=None,
        username=user,
        client_keys=[asyncssh.read_private_key(key)],
        known_hosts=lambda host, address, port: entries.match(host, address, port),
        agent_path=None,
        encryption_algs=("aes128-gcm@openssh.com",),
        kex_algs=("curve25519-sha256",),
        compression_algs=("none",),
        preferred_auth=("publickey",),
        gss_auth=False,
        gss_kex=False,
    )
    making = asyncio.Semaphore(64)

    async def one(host: str) -> bool:
        async with making:
            connection = await asyncssh.connect(host, port, config=None, options=options)
        async with connection:
            done = await connection.run(command, encoding=None, stdin=asyncssh.DEVNULL)
        if isinstance(done.stdout, bytes):
            sys.stdout.buffer.write(done.stdout)
        return done.exit_status == 0

    return 0 if all(await asyncio.gather(*map(one, hosts))) else 1


if __name__ == "__main__":
    number, login, identity, known_file, hosts_file, line = sys.argv[1:]
    lines, names = Path(known_file).read_text(), Path(hosts_file).read_text().split()
    sys.exit(asyncio.run(main(int(number), login, identity, lines, names, line)))
