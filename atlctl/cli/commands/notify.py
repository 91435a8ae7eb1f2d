"""`atlctl notify`: send standard input to a chat, a mailbox or a webhook of the configuration, through apprise."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from typing import Annotated

import typer

from atlctl.cli import say
from atlctl.i18n import COMMA, Message, joined
from atlctl.jobs.config import load_config
from atlctl.jobs.errors import AtlctlError, UsageError
from atlctl.render.redact import redact_text

#: Bytes that are read, and characters that are sent: chats refuse more.
_READ, _SENT = 64 << 10, 3000

TEXT = Message(
    "Sends standard input; secrets in it are hidden. NAME is a line of the table [notify] of your config.toml, with a "
    "URL of apprise: Feishu, DingTalk, WeCom, Slack, e-mail, any webhook. 'atlctl run --notify NAME' sends the cause "
    "of a failure."
)
EXAMPLES = Message(
    """\
echo hello | atlctl notify team
atlctl errors train-7 | atlctl notify team --title "train-7 failed\""""
)


def command(
    name: Annotated[str, typer.Argument(metavar="NAME", help=Message("a name of the table [notify]"))],
    title: Annotated[str, typer.Option("--title", metavar="TEXT", help=Message("the title of the message"))] = "",
) -> int:
    urls = load_config(os.environ).notified(name)
    warnings.simplefilter("ignore", DeprecationWarning)  # of apprise, and of modules that it imports
    try:
        import apprise
    except ImportError as error:
        raise AtlctlError(
            Message("notifications need apprise, which is not installed beside atlctl"),
            f"{sys.executable} -m pip install apprise",
        ) from error
    sender = apprise.Apprise()
    for number, url in enumerate(urls, 1):
        if not sender.add(url):  # it may hold a password
            raise UsageError(
                Message("URL {number} of {key} is not one of apprise", number=number, key=f"notify.{name}"),
                Message("see {url}", url="https://appriseit.com/services"),
            )
    say.reads_stdin()
    text = redact_text(sys.stdin.buffer.read(_READ).decode("utf-8", "replace")).strip()
    if not text:
        raise UsageError(Message("standard input is empty: nothing to send"))
    body = text if len(text) <= _SENT else f"{text[:_SENT]} ..."
    with apprise.LogCapture(level=logging.WARNING, fmt="%(message)s") as log:  # type: ignore[no-untyped-call]
        sent = sender.notify(body=body, title=redact_text(title))
        said = joined(dict.fromkeys(redact_text(log.getvalue()).splitlines()), COMMA)
    if not sent:
        raise AtlctlError(Message("{name}: not sent: {why}", name=name, why=said or Message("no reason is known")))
    say.out(f"{Message('sent: {names}', names=name)}\n")
    return 0
