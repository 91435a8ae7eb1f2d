"""The client with a scripted server: requests, retries, error messages."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
import tracemalloc
import zlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from atlctl import __version__
from atlctl.backends.kubernetes import client as module
from atlctl.backends.kubernetes.access import Access
from atlctl.backends.kubernetes.api import ApiError, Busy, Conflict, Denied, NoServer, NotFound, TooLarge
from atlctl.backends.kubernetes.client import Client
from atlctl.jobs.errors import ExitCode

PODS = "/api/v1/namespaces/team/pods"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class FakeAccess(Access):
    """Headers that a test can change: after a refusal, the next token is used."""

    tokens: tuple[str, ...] = ("first", "second")

    def headers_at_hand(self) -> dict[str, str] | None:
        return {"Authorization": f"Bearer {self.tokens[0]}"}

    def renew(self, refused: Any) -> bool:
        changed = len(self.tokens) > 1
        self.tokens = self.tokens[1:] or self.tokens
        return changed


def run(
    handler: Handler,
    use: Callable[[Client], Awaitable[Any]],
    *,
    prefix: str = "",
    waiting: Callable[[str], None] | None = None,
    **settings: Any,
) -> Any:
    async def go() -> Any:
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", handler)
        runner = web.AppRunner(application)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        assert site._server is not None
        port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
        made = Client(FakeAccess(f"http://127.0.0.1:{port}{prefix}", "here", "team", "a test", **settings), waiting)
        try:
            return await use(made)
        finally:
            await made.aclose()
            await runner.cleanup()

    return asyncio.run(go())


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PAUSES", (0.01, 0.01, 0.01))


def answers(*made: web.Response | dict[str, Any]) -> tuple[Handler, list[web.Request]]:
    """A handler that returns these answers in order (the last one forever), and the requests it received."""
    seen: list[web.Request] = []

    async def handle(request: web.Request) -> web.StreamResponse:
        await request.read()
        answer = made[min(len(seen), len(made) - 1)]
        seen.append(request)
        if isinstance(answer, dict):
            return web.json_response(answer)
        return web.Response(status=answer.status, body=answer.body, headers=answer.headers)

    return handle, seen


def status(code: int, message: str, reason: str = "", **headers: str) -> web.Response:
    body = json.dumps({"kind": "Status", "status": "Failure", "message": message, "reason": reason, "code": code})
    return web.Response(status=code, text=body, content_type="application/json", headers=headers)


def test_a_request_says_who_asks_and_what_for() -> None:
    handler, seen = answers({"kind": "Pod"})
    query = [("labelSelector", "a=b,c in (d,e)"), ("x", "1"), ("x", "ä&/")]
    assert run(handler, lambda it: it.get(PODS, query), prefix="/k8s/clusters/c-1") == {"kind": "Pod"}
    (request,) = seen
    assert request.path == f"/k8s/clusters/c-1{PODS}"
    assert request.query.getall("x") == ["1", "ä&/"]
    assert request.query["labelSelector"] == "a=b,c in (d,e)"
    assert request.headers["User-Agent"] == f"atlctl/{__version__}"
    assert request.headers["Authorization"] == "Bearer first"


def test_a_list_is_read_page_by_page() -> None:
    pages = [
        {"metadata": {"continue": "t1", "resourceVersion": "7"}, "items": [{"n": 1}, "no object"]},
        {"metadata": {"resourceVersion": "7"}, "items": [{"n": 2}]},
    ]
    handler, seen = answers(*pages)
    found = run(handler, lambda it: it.list(PODS, {"labelSelector": "a"}))
    assert [item["n"] for item in found.items] == [1, 2]
    assert [request.query.get("continue") for request in seen] == [None, "t1"]
    assert {request.query["limit"] for request in seen} == {"500"}


def test_a_list_whose_pages_expired_begins_again() -> None:
    first = {"metadata": {"continue": "t1"}, "items": [{"n": 1}]}
    handler, _ = answers(first, status(410, "expired", "Expired"), first, {"metadata": {}, "items": [{"n": 2}]})
    assert [item["n"] for item in run(handler, lambda it: it.list(PODS)).items] == [1, 2]
    always, seen = answers(first, status(410, "x"), first, status(410, "x"), first, status(410, "expired for good"))
    with pytest.raises(ApiError, match="for good"):
        run(always, lambda it: it.list(PODS))
    assert len(seen) == 6


def test_an_empty_or_odd_list() -> None:
    odds: list[dict[str, Any]] = [{}, {"items": None}, {"metadata": None, "items": []}]
    for odd in odds:
        handler, _ = answers(odd)
        assert run(handler, lambda it: it.list(PODS)).items == []


@pytest.mark.parametrize(
    ("answer", "error", "code", "says"),
    [
        (status(403, 'pods is forbidden: User "eve"', "Forbidden"), Denied, ExitCode.NOT_ALLOWED, "not allowed: pods"),
        (status(404, 'pods "x" not found', "NotFound"), NotFound, ExitCode.NOTHING_MATCHED, 'pods "x" not found'),
        (web.Response(status=404, text="404 page not found\n"), NotFound, 3, "404 page not found"),
        (status(409, "the UID does not match", "Conflict"), Conflict, ExitCode.FAILED, "the UID"),
        (status(422, "bad value", "Invalid"), ApiError, ExitCode.FAILED, "answered 422: bad value"),
        (web.Response(status=431, text=""), ApiError, ExitCode.FAILED, "answered 431"),
        (web.Response(status=302, headers={"Location": "http://elsewhere.test"}), ApiError, 1, "answered 302"),
        (web.Response(status=400, body=b"\xff\x1b[31m"), ApiError, ExitCode.FAILED, "answered 400"),
        (web.Response(status=400, text="[" * 100_000), ApiError, ExitCode.FAILED, "answered 400"),
    ],
)
def test_refusals(answer: web.Response, error: type[ApiError], code: int, says: str) -> None:
    handler, seen = answers(answer)
    with pytest.raises(error) as caught:
        run(handler, lambda it: it.get(PODS))
    assert type(caught.value) is error
    assert caught.value.exit_code == code
    assert says in caught.value.message
    assert len(caught.value.message) < 1_100
    assert len(seen) == 1


def test_a_token_that_expired_is_read_again() -> None:
    handler, seen = answers(status(401, "Unauthorized"), {"kind": "Pod"})
    assert run(handler, lambda it: it.get(PODS)) == {"kind": "Pod"}
    assert [request.headers["Authorization"] for request in seen] == ["Bearer first", "Bearer second"]


def test_who_is_not_known() -> None:
    handler, seen = answers(status(401, "Unauthorized"))
    with pytest.raises(Denied, match="401") as caught:
        run(handler, lambda it: it.get(PODS))
    assert caught.value.exit_code == ExitCode.NOT_ALLOWED
    assert len(seen) == 2


def test_reads_are_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    handler, seen = answers(status(500, "etcd is busy"), web.Response(status=502), {"kind": "Pod"})
    assert run(handler, lambda it: it.get(PODS)) == {"kind": "Pod"}
    assert len(seen) == 3
    always, seen = answers(status(500, "etcd is gone"))
    with pytest.raises(ApiError, match="etcd is gone"):
        run(always, lambda it: it.get(PODS))
    assert len(seen) == 4


def test_the_server_asks_for_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    handler, seen = answers(status(429, "later", **{"Retry-After": "0"}), {"kind": "Pod"})
    assert run(handler, lambda it: it.get(PODS)) == {"kind": "Pod"}
    assert len(seen) == 2
    impatient, seen = answers(status(429, "later", **{"Retry-After": "3000"}))
    with pytest.raises(Busy) as caught:
        run(impatient, lambda it: it.get(PODS))
    assert (caught.value.exit_code, caught.value.retry_after, len(seen)) == (ExitCode.TIMEOUT, 3000.0, 1)


def test_a_write_is_repeated_only_where_nothing_was_done() -> None:
    handler, seen = answers(status(429, "later", **{"Retry-After": "0"}), {"kind": "Job"})
    assert run(handler, lambda it: it.send("PATCH", PODS, {"a": 1}, merge_patch=True)).data == {"kind": "Job"}
    assert [request.headers["Content-Type"] for request in seen] == ["application/merge-patch+json"] * 2
    broken, seen = answers(status(500, "who knows"))
    with pytest.raises(ApiError, match="who knows"):
        run(broken, lambda it: it.send("DELETE", PODS, {"kind": "DeleteOptions"}))
    assert len(seen) == 1


def test_warnings_of_the_server() -> None:
    async def handle(_: web.Request) -> web.StreamResponse:
        response = web.json_response({})
        response.headers.add("Warning", '299 - "unknown field \\"spec.suspendd\\""')
        response.headers.add("Warning", '299 - "second"')
        return response

    found = run(handle, lambda it: it.send("PATCH", PODS, {}, merge_patch=True))
    assert found.warnings == ('unknown field "spec.suspendd"', "second")


def test_an_answer_that_is_no_json() -> None:
    handler, _ = answers(web.Response(text="<html>log in here</html>"))
    with pytest.raises(NoServer, match="not JSON"):
        run(handler, lambda it: it.get(PODS))


def test_nobody_listens() -> None:
    async def go() -> None:
        made = Client(FakeAccess("https://127.0.0.1:1", "here", "team", "a test"))
        try:
            await made.get(PODS)
        finally:
            await made.aclose()

    with pytest.raises(NoServer, match=r"127\.0\.0\.1:1 cannot be reached") as caught:
        asyncio.run(go())
    assert caught.value.exit_code == ExitCode.UNREACHABLE
    assert (
        caught.value.hint == "check the context here; jobs of this machine or of hosts: --backend local, --backend ssh"
    )


def test_the_proxy_is_asked_and_its_password_is_not_told() -> None:
    proxies: list[str] = []

    async def handle(request: web.Request) -> web.StreamResponse:
        proxies.append(request.raw_path)
        return web.json_response({"kind": "Pod"})

    async def use(it: Client) -> Any:
        it.access.proxy = it.server.replace("http://", "http://user:canary@")
        it.server = "http://api.test:80"
        return await it.get(PODS)

    assert run(handle, use) == {"kind": "Pod"}
    assert proxies == [f"http://api.test{PODS}"]

    async def refused(it: Client) -> Any:
        it.access.proxy = "http://user:canary@127.0.0.1:1"
        return await it.get(PODS)

    with pytest.raises(NoServer, match="proxy 127") as caught:
        run(handle, refused)
    assert "canary" not in caught.value.message


def test_a_stream_ends_where_the_server_ends_it_and_breaks_where_it_breaks() -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"one\n")
        if "broken" in request.query:
            assert request.transport is not None
            request.transport.abort()
        else:
            await response.write(b"two\n")
        return response

    async def read(it: Client, **query: str) -> tuple[int, bytes]:
        got = b""
        async with it.stream(f"{PODS}/p/log", query) as (code, body):
            async for data in body:
                got += data
        return code, got

    assert run(handle, read) == (200, b"one\ntwo\n")
    with pytest.raises(NoServer, match="broke"):
        run(handle, lambda it: read(it, broken="1"))


def test_a_stream_without_content_and_one_that_is_refused() -> None:
    async def opened(it: Client) -> int:
        async with it.stream(PODS) as (code, _):
            return code

    handler, _ = answers(web.Response(status=204))
    assert run(handler, opened) == 204
    handler, _ = answers(status(400, "waiting to start: ContainerCreating", "BadRequest"))
    with pytest.raises(ApiError, match="ContainerCreating"):
        run(handler, opened)


def test_a_stream_that_is_left_early_is_closed() -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            while True:
                await response.write(b"x" * 65536)
                await asyncio.sleep(0.005)
        finally:
            left.set()

    async def use(it: Client) -> None:
        async with it.stream(PODS) as (_, body):
            async for _ in body:
                break
        async with asyncio.timeout(100):
            await left.wait()

    left = asyncio.Event()
    run(handle, use)


@pytest.mark.parametrize(
    ("answer", "error", "says"),
    [
        (status(400, "pod p does not have a host assigned", "BadRequest"), ApiError, "does not have a host"),
        (web.Response(status=500, text='container not found ("main")'), ApiError, "container not found"),
        (status(403, 'pods "p" is forbidden: ', "Forbidden"), Denied, "not allowed"),
        (status(404, 'pods "p" not found', "NotFound"), NotFound, "not found"),
    ],
)
def test_a_refused_upgrade_tells_the_servers_words(answer: web.Response, error: type[ApiError], says: str) -> None:
    handler, seen = answers(answer)
    with pytest.raises(error, match=says):
        run(handler, lambda it: it.socket(f"{PODS}/p/exec", [("command", "id")], ("v5.channel.k8s.io",)))
    assert len(seen) == 1


def test_an_upgrade_is_tried_again_where_the_tunnel_is_gone() -> None:
    handler, seen = answers(status(500, "error dialing backend: dial tcp 10.0.0.1:10250: connect: connection refused"))
    with pytest.raises(ApiError, match="dialing"):
        run(handler, lambda it: it.socket(f"{PODS}/p/exec", (), ("v5.channel.k8s.io",)))
    assert len(seen) == 4


# Answers that never end


async def silent(request: web.Request) -> web.StreamResponse:
    while request.transport is not None and not request.transport.is_closing():  # noqa: ASYNC110 - has no event
        await asyncio.sleep(0.01)
    return web.Response()


async def dripping(request: web.Request) -> web.StreamResponse:
    """Never silent for long enough to count as lost."""
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    await response.prepare(request)
    while True:
        await response.write(b" ")
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("handler", [silent, dripping], ids=lambda handler: handler.__name__)
@pytest.mark.parametrize("asked", ["get", "list", "write", "stream"])
def test_an_answer_has_a_time_in_all(monkeypatch: pytest.MonkeyPatch, handler: Handler, asked: str) -> None:
    """Including retries. The time for a streaming answer ends when the stream starts."""
    monkeypatch.setattr(module, "READ_SECONDS", 0.3)
    monkeypatch.setattr(module, "DEADLINE", 0.5)
    monkeypatch.setattr(module, "WRITE_DEADLINE", 0.5)
    monkeypatch.setattr(module, "NOTICE_SECONDS", 0.1)
    told: list[str] = []

    async def use(it: Client) -> None:
        async with asyncio.timeout(100):
            if asked == "get":
                await it.get(PODS)
            elif asked == "list":
                await it.list(PODS)
            elif asked == "write":
                await it.send("DELETE", PODS, None)
            else:
                async with it.stream(PODS):
                    pass

    if (handler, asked) == (dripping, "stream"):
        monkeypatch.setattr(module, "NOTICE_SECONDS", 5)
        monkeypatch.setattr(module, "DEADLINE", 10)
        run(handler, use, waiting=told.append)
        assert told == []
        return
    with pytest.raises(NoServer, match=r"^the API server 127\.0\.0\.1:\d+ did not answer within 0 s$") as caught:
        run(handler, use, waiting=told.append)
    assert caught.value.exit_code == ExitCode.UNREACHABLE
    assert len(told) == 1
    assert told[0].startswith("waiting for the API server 127.0.0.1:")


def test_what_is_waited_for_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NOTICE_SECONDS", 0.02)
    told: list[str] = []

    async def slow(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(0.1)
        return web.json_response({})

    async def use(it: Client) -> None:
        await asyncio.gather(*(it.get(PODS) for _ in range(5)))
        await it.get(PODS)

    run(slow, use, waiting=told.append)
    assert len(told) == 1


def test_a_login_takes_its_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user may be in a browser: no answer timeout ends it."""
    monkeypatch.setattr(module, "DEADLINE", 0.6)
    monkeypatch.setattr(FakeAccess, "headers_at_hand", lambda _: None)

    def headers(access: FakeAccess) -> dict[str, str]:
        if len(access.tokens) == 2:
            access.tokens = ("second",)
            time.sleep(0.8)
            monkeypatch.setattr(FakeAccess, "headers_at_hand", lambda _: {})
        return {}

    monkeypatch.setattr(FakeAccess, "headers", headers)
    handler, _ = answers({"kind": "Pod"})
    assert run(handler, lambda it: it.get(PODS)) == {"kind": "Pod"}


def packed(data: bytes, **headers: str) -> web.Response:
    return web.Response(body=gzip.compress(data), headers={"Content-Encoding": "gzip", **headers})


def test_a_packed_answer_is_unpacked() -> None:
    whole = {"kind": "Pod", "text": "ä" * 3_000_000}
    handler, seen = answers(packed(json.dumps(whole).encode()))
    assert run(handler, lambda it: it.get(PODS)) == whole
    assert seen[0].headers["Accept-Encoding"] == "gzip"
    handler, _ = answers(web.Response(status=403, body=packed(b"words").body, headers={"Content-Encoding": "gzip"}))
    with pytest.raises(Denied, match="words"):
        run(handler, lambda it: it.get(PODS))


@pytest.mark.parametrize(
    "answer",
    [
        web.Response(body=b"no gzip", headers={"Content-Encoding": "gzip"}),
        web.Response(body=b"{}", headers={"Content-Encoding": "br"}),
        web.Response(body=gzip.compress(b"{}" * 100)[:20], headers={"Content-Encoding": "gzip"}),
    ],
    ids=["broken", "another way", "cut"],
)
def test_an_answer_that_cannot_be_unpacked(answer: web.Response) -> None:
    handler, _ = answers(answer)
    with pytest.raises(NoServer, match=r"decompress|encoding|not JSON"):
        run(handler, lambda it: it.get(PODS))


@pytest.mark.parametrize(
    "answer",
    [
        packed(b'{"items":["' + b"a" * 5_000_000 + b'"]}'),
        web.Response(body=b'{"items":["' + b"a" * 5_000_000 + b'"]}'),
        packed(b'{"items":[' + b"{}," * 100_000 + b"{}]}"),
    ],
    ids=["a bomb", "a long body", "many small objects"],
)
def test_an_answer_beyond_all_measure_is_an_error(monkeypatch: pytest.MonkeyPatch, answer: web.Response) -> None:
    monkeypatch.setattr(module, "ANSWER_BYTES", 4_000_000)
    monkeypatch.setattr(module, "PARSED_BYTES", 6_000_000)
    handler, seen = answers(answer)
    with pytest.raises(TooLarge, match=rf"returned an answer that is too large: {PODS}$") as caught:
        run(handler, lambda it: it.list(PODS))
    assert (caught.value.exit_code, len(seen)) == (ExitCode.FAILED, 1)


def test_nothing_is_unpacked_beyond_the_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four simultaneous answers, each 256 MiB in 256 KiB: this process uses a few dozen megabytes for them."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    body = b"".join(packer.compress(b"[" * (1 << 20)) for _ in range(256)) + packer.flush()
    handler, _ = answers(web.Response(body=body, headers={"Content-Encoding": "gzip"}))

    async def use(it: Client) -> list[Any]:
        return await asyncio.gather(*(it.get(PODS) for _ in range(4)), return_exceptions=True)

    monkeypatch.setattr(module, "ANSWER_BYTES", 8 << 20)
    tracemalloc.start()
    try:
        found = run(handler, use)
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()
    assert [type(error) for error in found] == [TooLarge] * 4


@pytest.mark.parametrize("limit", ["MOST_PAGES", "PARSED_BYTES"])
def test_a_list_without_an_end_is_an_error(monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    monkeypatch.setattr(module, limit, {"MOST_PAGES": 7, "PARSED_BYTES": 3000}[limit])
    handler, seen = answers({"metadata": {"continue": "more"}, "items": [{"n": 1}]})
    with pytest.raises(TooLarge, match="does not end its list"):
        run(handler, lambda it: it.list(PODS))
    assert 5 < len(seen) < 15


def test_a_list_whose_pages_drip_has_a_time_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LIST_DEADLINE", 0.2)

    async def slow(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(0.05)
        return web.json_response({"metadata": {"continue": "more"}, "items": []})

    with pytest.raises(NoServer, match="did not send the whole list within"):
        run(slow, lambda it: it.list(PODS))
