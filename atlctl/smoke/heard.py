"""What agents and ranks say in sentences of ours: they run on workers, without this package, so English text arrives.

A test compares the list with the programs.
"""

from __future__ import annotations

import functools
import string

from atlctl.i18n import Message

SENTENCES = (
    # The shell that looks for a Python (`remote/sh/find_python.sh`).
    Message("no Python 3.8 or newer is there"),
    Message("no Python 3.8 or newer is there; too old: {old}"),
    Message("no Python 3.8 or newer is there; not run, as other users can change it: {path}"),
    Message("no Python 3.8 or newer is there; too old: {old}; not run, as other users can change it: {path}"),
    # The agent.
    Message("it ended with {code}"),
    Message("no answer in {seconds} s (process state {state}, in {place})"),
    Message("no answer in {seconds} s (process state {state})"),
    Message("no answer in {seconds} s"),
    Message("nvidia-smi ended with {code}: {output}"),
    Message("hung up"),
    Message("worker number {index} answers there"),
    Message("bytes came back altered"),
    Message("nothing came for {seconds} s"),
    Message("torch was not asked for"),
    Message("torch cannot be imported: {error}"),
    Message("the process that starts ranks takes no orders: {error}"),
    Message("the process that starts ranks has ended"),
    Message("the process that starts ranks was ended by signal {number}"),
    Message("the process that starts ranks ended with exit {code}"),
    Message("the agent leaves"),
    # The probe.
    Message("RuntimeError: ranks [{numbers}] of the group did not come to the store"),
    Message("RuntimeError: GPU {number} is hidden by CUDA_VISIBLE_DEVICES={visible}"),
    Message("RuntimeError: no interface has an address"),
    Message("RuntimeError: the store of the leader cannot be reached on port {port}: {errors}"),
)


def message_of(text: object) -> str:
    """The message that a worker's text is; any other text, hostile as it may be, stays as it is."""
    if isinstance(text, Message):
        return text
    said = str(text)
    for sentence, literals, names in _parts():
        values = _between(said, literals)
        if values is not None:
            return Message(sentence, **dict(zip(names, values, strict=True)))
    return said


@functools.cache
def _parts() -> list[tuple[str, list[str], list[str]]]:
    """Of each sentence its literal parts, and the names of the values between them."""
    found = []
    for sentence in SENTENCES:
        fields = [(literal, name) for literal, name, _, _ in string.Formatter().parse(sentence.template)]
        literals = [literal for literal, _ in fields] + ([""] if fields[-1][1] is not None else [])
        found.append((sentence.template, literals, [name for _, name in fields if name is not None]))
    return found


def _between(text: str, literals: list[str]) -> list[str] | None:
    """What is between the literals, looked for from left to right; None if `text` is not made of them."""
    if len(literals) == 1:
        return [] if text == literals[0] else None
    first, *middle, last = literals
    if not (text.startswith(first) and text.endswith(last) and len(text) >= len(first) + len(last)):
        return None
    at, end, values = len(first), len(text) - len(last), list[str]()
    for literal in middle:
        found = text.find(literal, at, end)
        if found < 0:
            return None
        values.append(text[at:found])
        at = found + len(literal)
    return [*values, text[at:end]]
