"""The page of `atlctl report` in a real browser: rendered in light and dark, narrow and wide, without requests."""

from __future__ import annotations

import json
import re
import subprocess
import threading
from collections.abc import Iterator, Sequence
from html import escape, unescape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.support import png
from tests.support.cli import run_cli
from tests.support.markup import read
from tests.support.needs import find_program, needs
from tests.support.once import folder_of_run, once
from tests.support.saved import evidence, smoke_document

pytestmark = needs("chromium")

LIGHT, DARK = 1, 0
CORPUS = Path(__file__).parents[1] / "corpus" / "data"
#: A crash, a death without logs, a hang, an undecided case, a healthy job.
CASES = ("exception_chain", "killed_plain", "frozen_process", "pipe_ring_deadlock", "restart_recovers")
PHONE, WIDE = 360, 1200
#: Also disables the browser's own requests.
_OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
    *(
        "--disable-component-update",
        "--disable-sync",
        "--hide-scrollbars",
        "--disable-default-apps",
        "--disable-breakpad",
    ),
    *("--disable-features=OptimizationHints,Translate,MediaRouter", "--virtual-time-budget=2000"),
)


#: The browser's own requests despite all options. A test of the text checks that no page names such a host.
_OF_THE_BROWSER = re.compile(r"(?:google|googleapis|gvt1|gvt2|gstatic)\.com[:/]")


class Asked:
    """A proxy on loopback that records requests and answers none."""

    def __init__(self) -> None:
        asked: list[str] = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if not _OF_THE_BROWSER.search(self.path):
                    asked.append(self.path)
                self.send_error(403)

            def do_CONNECT(self) -> None:
                self.do_GET()

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                """Do not log to stderr."""

        self.paths = asked
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def proxy(self) -> str:
        return f"--proxy-server=http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def asked() -> Iterator[Asked]:
    made = Asked()
    yield made
    made.server.shutdown()
    made.server.server_close()


def browse(page: Path, asked: Asked, folder: Path, *words: str) -> subprocess.CompletedProcess[bytes]:
    program = find_program("chromium")
    assert program is not None
    words = (program, *_OPTIONS, asked.proxy, "--proxy-bypass-list=<-loopback>", f"--user-data-dir={folder}", *words)
    return subprocess.run([*words, page.as_uri()], capture_output=True, timeout=120, check=True)


def shot(page: Path, asked: Asked, tmp_path: Path, scheme: int, width: int = 1280, height: int = 1600) -> png.Picture:
    target = tmp_path / f"{page.parent.name}-{scheme}-{width}.png"
    profile = tmp_path / f"profile-{target.stem}"
    words = (
        f"--blink-settings=preferredColorScheme={scheme}",
        f"--window-size={width},{height}",
        f"--screenshot={target}",
    )
    browse(page, asked, profile, *words)
    return png.read(target)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Reports of jobs with 4 and 70 workers, and 5 with long names, with results of smoke tests."""
    return once(tmp_path_factory, "pages", lambda: _pages(folder_of_run(tmp_path_factory) / "report-pages"))


def _pages(base: Path) -> dict[int, Path]:
    base.mkdir()
    made = {}
    for workers, name, words in (
        (4, "worker-{}", "ValueError: shard 17"),
        (70, "worker-{}", "ValueError: shard 17"),
        (5, f"<img src=x>-训练任务-{'x' * 90}-{{}}", f"ValueError: {'y' * 400}"),
    ):
        (base / f"{workers}.json").write_text(json.dumps(smoke_document(workers, name=name)))
        saved = evidence(base / f"saved-{workers}", workers, name=name, words=words)
        out = base / f"report-{workers}"
        run = run_cli("report", "--from", str(saved), "--out", str(out), "--smoke", str(base / f"{workers}.json"))
        assert run.code == 0, run
        made[workers] = out / "index.html"
    return made


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Path]:
    """Reports of real failures, by case and language."""
    return once(tmp_path_factory, "cases", lambda: _cases(folder_of_run(tmp_path_factory) / "report-cases"))


def _cases(base: Path) -> dict[tuple[str, str], Path]:
    base.mkdir()
    made = {}
    for case in CASES:
        for language in ("C.UTF-8", "zh_CN.UTF-8"):
            out = base / f"{case}-{language[:2]}"
            run = run_cli("report", "--from", str(CORPUS / case), "--out", str(out), env={"LC_ALL": language})
            assert run.code == 0, run
            made[case, language] = out / "index.html"
    return made


def framed(pages: Sequence[tuple[str, Path, int]], folder: Path, height: int = 2400) -> Path:
    """A page with frames of several widths that writes the layout errors of its pages to `pre`.

    The scripts belong to the test. The pages are unchanged except for their policy, which blocks scripts.
    """
    frames = []
    for name, page, width in pages:
        inside = escape(re.sub(r"<meta http-equiv[^>]*>", "", page.read_text()), quote=True)
        frames.append(f'<iframe title="{name} {width}" width={width} height={height} srcdoc="{inside}"></iframe>')
    style = "body{margin:0}iframe{border:0;display:block}"
    script = (Path(__file__).parent / "measure.js").read_text()
    target = folder / "framed.html"
    target.write_text(f"<!DOCTYPE html><style>{style}</style>{''.join(frames)}<pre></pre><script>{script}</script>")
    return target


@pytest.mark.parametrize("scheme", [LIGHT, DARK])
def test_all_texts_are_legible_and_none_overlaps_or_hangs_out(pages, cases, asked, tmp_path, scheme):
    """A contrast of 4.5 for each text, with all parts open, on narrow and wide screens, in both languages."""
    shown = [(f"{case} {language}", page, width) for (case, language), page in cases.items() for width in (PHONE, WIDE)]
    shown += [(f"{workers} workers", pages[workers], width) for workers in pages for width in (PHONE, WIDE)]
    done = browse(
        framed(shown, tmp_path),
        asked,
        tmp_path / "profile",
        f"--blink-settings=preferredColorScheme={scheme}",
        "--dump-dom",
    )
    found = re.search("<pre>(.*?)</pre>", done.stdout.decode(), re.DOTALL)
    assert found is not None
    measured = json.loads(unescape(found[1]))
    assert len(measured) == len(shown)
    assert all(item["texts"] > 40 for item in measured)
    assert [item["dark"] for item in measured] == [scheme == DARK] * len(shown)
    assert {item["name"]: item["problems"] for item in measured if item["problems"]} == {}


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (("h1{", "h1{color:#999!important;"), "contrast"),
        ((".tick{font-size:12px", ".tick{font-size:60px"), "overlaps"),
        (("main,header,footer{max-width:72rem;", "main,header,footer{width:80rem;"), "wider"),
    ],
)
def test_the_measure_finds_what_is_wrong(cases, asked, tmp_path, spoil, problem):
    """Proves that an empty list is significant."""
    spoilt = tmp_path / "spoilt.html"
    page = cases["frozen_process", "C.UTF-8"].read_text()
    assert spoil[0] in page
    spoilt.write_text(page.replace(*spoil))
    done = browse(framed([("spoilt", spoilt, PHONE)], tmp_path), asked, tmp_path / "profile", "--dump-dom")
    assert problem in done.stdout.decode().rpartition("<pre>")[2].partition("</pre>")[0]


@pytest.mark.parametrize("width", [PHONE, WIDE])
def test_pictures_of_a_hang(cases, asked, tmp_path, width):
    """The timeline, light and dark, contains the culprit's red and the orange of the waiting ranks."""
    page = framed([("hang", cases["frozen_process", "C.UTF-8"], width)], tmp_path, 700)
    light, dark = (shot(page, asked, tmp_path, scheme, WIDE, 700) for scheme in (LIGHT, DARK))
    assert brightness(light) > 240
    assert brightness(dark) < 40
    assert asked.paths == []
    for picture, red, orange in ((light, "c00d0d", "a84300"), (dark, "ff8a80", "ffab66")):
        assert {bytes.fromhex(red), bytes.fromhex(orange)} <= picture.colours(1)
        assert {picture.pixel(x, y) for y in range(700) for x in (1, width - 2)} == {picture.pixel(1, 1)}


def brightness(picture: png.Picture) -> float:
    corner = picture.pixel(2, 2)
    return sum(corner) / 3


def test_it_runs_and_loads_nothing(pages, asked, tmp_path):
    """Untrusted text of a job that would load a resource or run a script if it were markup."""
    words = f"<img src=http://127.0.0.1:{asked.server.server_port}/x><script>document.title='ran'</script>"
    saved = evidence(
        tmp_path / "saved",
        3,
        words=f"ValueError: {words}",
        name="w<img src=http://atlctl.invalid/x>{}".replace("/", "%2F"),
    )
    run = run_cli("report", "--from", str(saved), "--out", str(tmp_path / "report"))
    assert run.code == 0, run
    done = browse(tmp_path / "report" / "index.html", asked, tmp_path / "profile", "--dump-dom")
    found = read(done.stdout.decode())
    assert found.problems == []
    assert "<img src=http" in found.text
    assert "ran" not in found.headings
    assert asked.paths == []


def test_the_proxy_notes_what_is_asked_for(asked, tmp_path):
    """Proves that an empty list is significant."""
    page = tmp_path / "page.html"
    page.write_text("<img src=http://atlctl.invalid/picture.png>")
    browse(page, asked, tmp_path / "profile", "--dump-dom")
    assert [path for path in asked.paths if "picture.png" in path]


def test_the_pictures_differ_where_the_style_is_refused(pages, asked, tmp_path):
    """The policy allows only this exact style: with one more character, the page has no style."""
    spoilt = tmp_path / "spoilt" / "index.html"
    spoilt.parent.mkdir()
    spoilt.write_text(pages[4].read_text().replace("<style>", "<style>/**/"))
    assert brightness(shot(spoilt, asked, tmp_path, DARK)) != brightness(shot(pages[4], asked, tmp_path, DARK))
