"""The page of `atlctl report` in a real browser: it is drawn, light and dark, wide and narrow, and asks nobody."""

from __future__ import annotations

import json
import re
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.support import png
from tests.support.cli import run_cli
from tests.support.markup import read
from tests.support.needs import find_program, needs
from tests.support.saved import evidence, smoke_document

pytestmark = [needs("chromium"), pytest.mark.timeout(180)]

LIGHT, DARK = 1, 0
#: Whatever the browser wants of its own goes nowhere either.
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


#: What it asks for whatever page it shows, in spite of all options. That no page names such a host is tested by text.
_OF_THE_BROWSER = re.compile(r"(?:google|googleapis|gvt1|gvt2|gstatic)\.com[:/]")


class Asked:
    """A proxy on loopback that gives nothing and notes what was asked for."""

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
                """Nothing on stderr."""

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
    """Reports on jobs of 4 and of 70 workers, with the results of smoke tests."""
    base = tmp_path_factory.mktemp("pages")
    made = {}
    for workers in (4, 70):
        (base / f"{workers}.json").write_text(json.dumps(smoke_document(workers)))
        saved = evidence(base / f"saved-{workers}", workers)
        out = base / f"report-{workers}"
        run = run_cli("report", "--from", str(saved), "--out", str(out), "--smoke", str(base / f"{workers}.json"))
        assert run.code == 0, run
        made[workers] = out / "index.html"
    return made


def brightness(picture: png.Picture) -> float:
    corner = picture.pixel(2, 2)
    return sum(corner) / 3


def test_light_and_dark(pages, asked, tmp_path):
    light, dark = (shot(pages[4], asked, tmp_path, scheme) for scheme in (LIGHT, DARK))
    assert (light.width, light.height) == (dark.width, dark.height) == (1280, 1600)
    assert brightness(light) > 240
    assert brightness(dark) < 40
    # Not blank: text, lines, and the colours of the verdict.
    for picture in (light, dark):
        assert len(picture.colours()) > 50
    assert asked.paths == []


@pytest.mark.parametrize("workers", [4, 70])
@pytest.mark.parametrize("width", [1280, 480])
def test_nothing_hangs_out_of_the_page(pages, asked, tmp_path, workers, width):
    """Beside the text only the ground is seen, from top to bottom: nothing is wider than the window."""
    picture = shot(pages[workers], asked, tmp_path, LIGHT, width, 2400)
    edge = {picture.pixel(x, y) for y in range(picture.height) for x in (1, width - 2)}
    assert edge == {(255, 255, 255)}


def test_it_runs_and_loads_nothing(pages, asked, tmp_path):
    """Hostile words of a job that would ask for something if they were markup, and a script that would run."""
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
    """So that an empty list means something."""
    page = tmp_path / "page.html"
    page.write_text("<img src=http://atlctl.invalid/picture.png>")
    browse(page, asked, tmp_path / "profile", "--dump-dom")
    assert [path for path in asked.paths if "picture.png" in path]


def test_the_pictures_differ_where_the_style_is_refused(pages, asked, tmp_path):
    """The policy admits this very style: one more character in it, and the page is bare."""
    spoilt = tmp_path / "spoilt" / "index.html"
    spoilt.parent.mkdir()
    spoilt.write_text(pages[4].read_text().replace("<style>", "<style>/**/"))
    assert brightness(shot(spoilt, asked, tmp_path, DARK)) != brightness(shot(pages[4], asked, tmp_path, DARK))
