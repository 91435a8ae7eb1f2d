"""Carries out the writes of a plan, each with its precondition, or asks the server what it would say to them."""

from __future__ import annotations

from collections.abc import Sequence

from atlctl.backends.kubernetes.api import Answer, Api, ApiError, Conflict, Missing, NoServer, Refused
from atlctl.backends.kubernetes.kinds import fields
from atlctl.backends.kubernetes.stopping.plan import Write
from atlctl.jobs.errors import AtlctlError, NotAllowed

_AGAIN = "a second run is safe"


async def send(api: Api, writes: Sequence[Write], *, dry_run: bool = False) -> list[str]:
    """Sends all `writes`; with `dry_run` the server checks them and changes nothing. Warnings of the server come back.

    What is gone already needs no deletion. One that fails does not keep the others from being sent; then the first
    failure is raised. Raises AtlctlError where another object has taken the name, or where the answer lacks what was
    asked for; NotAllowed, NoServer.
    """
    warnings: list[str] = []
    failure: AtlctlError | None = None
    for write in writes:
        try:
            answer = await _one(api, write, dry_run)
        except AtlctlError as error:
            failure = failure or error
            continue
        if answer is not None:
            warnings += answer.warnings
    if failure is not None:
        raise failure
    return warnings


async def _one(api: Api, write: Write, dry_run: bool) -> Answer | None:
    try:
        if write.verify and fields.uid(await api.get(write.verify)) != write.uid:
            raise _replaced(write)
        if write.method == "DELETE":
            # The server does not look at the query of a DELETE that has a body: a dry run there would delete.
            body = {**write.body, "dryRun": ["All"]} if dry_run else write.body
            return await api.send("DELETE", write.path, body)
        query = [("dryRun", "All")] if dry_run else []
        answer = await api.send(write.method, write.path, write.body, query, merge_patch=write.method == "PATCH")
    except Missing as error:
        if write.method == "DELETE":
            return None
        raise AtlctlError(f"{write.what} is gone: nothing was changed", "atlctl jobs") from error
    except Conflict as error:
        raise (_replaced(write) if _about_uid(error) else error) from error
    except Refused as error:
        raise NotAllowed(f"{write.what} was not changed: {error.text or error.message}", "atlctl doctor") from error
    except NoServer as error:
        said = f"the connection broke while {write.what} was changed: it is not known whether it was ({error.message})"
        raise NoServer(said, _AGAIN) from error
    except ApiError as error:
        raise (_replaced(write) if _about_uid(error) else error) from error
    _check(write, answer)
    return answer


def _about_uid(error: ApiError) -> bool:
    """A DELETE is refused with 409 and the word UID, a patch with 422 and the field."""
    if error.status == 409:
        return "UID in the precondition" in error.text
    return error.status == 422 and "metadata.uid" in error.text and "immutable" in error.text


def _check(write: Write, answer: Answer) -> None:
    """A field that the server does not know is dropped with a warning, and the answer is a success all the same."""
    if write.expect is None:
        return
    path, value = write.expect
    if fields.dig(answer.data, *path) is value or fields.dig(answer.data, *path) == value:
        return
    said = f"; the server says: {'; '.join(answer.warnings)}" if answer.warnings else ""
    raise AtlctlError(
        f"{write.what} was not changed: its {'.'.join(path)} is not {value} in the server's answer{said}",
        "this version of the controller may not know the field",
    )


def _replaced(write: Write) -> AtlctlError:
    return AtlctlError(
        f"{write.what} was replaced by another of the same name meanwhile: it was left alone",
        "look at it, and run the command again: atlctl jobs",
    )
