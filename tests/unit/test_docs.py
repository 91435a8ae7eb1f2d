"""The documents are correct: links, command lines, both languages, exit codes, JSON fields, no machine's paths."""

from __future__ import annotations

import fnmatch
import functools
import os
import pwd
import re
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from babel.messages.pofile import read_po
from typer.main import get_command

from atlctl.cli import runtime, table
from atlctl.cli.app import app
from atlctl.cli.commands.stacks import to_data as to_stacks_data
from atlctl.cli.commands.stacks import worker_data
from atlctl.cli.parser import Command, parse_and_run
from atlctl.cli.sinks import JsonSink
from atlctl.cli.smoke.telling import to_data as to_smoke_data
from atlctl.cli.table import pages
from atlctl.diagnosis.hang import changes
from atlctl.diagnosis.result import GpuIdentity
from atlctl.diagnosis.telling.data import to_data
from atlctl.jobs.errors import AtlctlError, ExitCode
from atlctl.jobs.model import State
from atlctl.packaging.messages import po_path
from atlctl.render.writer import Writer
from tests.unit.diagnosis.causes import GUIDE, ONE
from tests.unit.diagnosis.hang import made as hangs
from tests.unit.output import helpers, test_jsonl
from tests.unit.smoke.reports import report as smoke_report

ROOT = Path(__file__).parents[2]
READMES = ("README.md", "README.zh-CN.md")
#: Every command once, exit codes, JSON.
TOURS = ("docs/en/tour.md", "docs/zh/tour.md")
DOCUMENTS = sorted(str(path.relative_to(ROOT)) for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")))
#: Both languages of each document, except the commands' pages, which are generated from one table.
PAIRS = [READMES] + [(f"docs/en/{path.name}", f"docs/zh/{path.name}") for path in sorted(ROOT.glob("docs/zh/*.md"))]
SHELLS = ("console", "sh", "bash")

_FENCE = re.compile(r"^```([a-z]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^(#{1,6}) (.+)$", re.MULTILINE)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_INLINE = re.compile(r"`([^`\n]+)`")
_OPERATOR = re.compile(r"[|&;<>()]+")


@functools.cache
def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@functools.cache
def prose(text: str) -> str:
    """The text without fenced blocks."""
    return _FENCE.sub("", text)


def headings(text: str) -> list[tuple[str, str]]:
    return _HEADING.findall(prose(text))


@functools.cache
def anchors(text: str) -> set[str]:
    """GitHub's anchors for headings: lower case, no punctuation, hyphens for blanks, numbered duplicates."""
    found: dict[str, int] = {}
    result = set()
    for _, title in headings(text):
        slug = re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-")
        count = found.get(slug, 0)
        found[slug] = count + 1
        result.add(f"{slug}-{count}" if count else slug)
    return result


def broken_links(name: str, text: str) -> list[str]:
    """Links within the project with a missing file or anchor."""
    broken = []
    for target in _LINK.findall(_INLINE.sub("", prose(text))):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (ROOT / name).parent / path
        if not file.exists() or (anchor and anchor not in anchors(file.read_text("utf-8") if path else text)):
            broken.append(target)
    return broken


def test_links_resolve() -> None:
    assert [(name, broken) for name in DOCUMENTS if (broken := broken_links(name, read(name)))] == []


def test_broken_links_are_seen() -> None:
    text = "# One `two` three\n\n[a](#one-two-three) [b](#four) [c](LICENSE) [d](nowhere.md) [e](README.md#nothing)"
    assert broken_links("README.md", text) == ["#four", "nowhere.md", "README.md#nothing"]


def shell_lines(text: str) -> Iterator[str]:
    """The lines that a reader would type: after `$ `, or all lines of a block without such a line."""
    for language, body in _FENCE.findall(text):
        if language in SHELLS:
            lines = body.replace("\\\n", " ").splitlines()
            typed = [line[2:] for line in lines if line.startswith("$ ")]
            yield from typed or lines


def simple_commands(line: str) -> Iterator[list[str]]:
    """The simple commands of a shell line, without comments, leading assignments and redirections."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    after_redirection = False
    for token in [*lexer, ";"]:
        if _OPERATOR.fullmatch(token):
            after_redirection = token[0] in "<>"
            if not after_redirection:
                while words and re.match(r"[A-Za-z_]\w*=", words[0]):
                    del words[0]
                if words:
                    yield words
                words = []
        elif after_redirection:
            after_redirection = False
        else:
            words.append(token)


def atlctl_lines(text: str) -> list[list[str]]:
    return [
        words[1:]
        for line in shell_lines(text)
        for words in simple_commands(line)
        if words[0].rpartition("/")[2] == "atlctl"
    ]


@pytest.fixture
def dry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parse command lines without running commands."""
    monkeypatch.setattr(Command, "invoke", lambda self, ctx: 0)
    monkeypatch.setattr(runtime, "start", lambda *args, **options: None)


@pytest.mark.usefixtures("dry")
def test_command_lines_parse(capfd: pytest.CaptureFixture[str]) -> None:
    wrong = []
    command = get_command(app)
    for name in DOCUMENTS:
        for words in atlctl_lines(read(name)):
            try:
                parse_and_run(command, words)
            except AtlctlError as error:
                wrong.append(f"{name}: atlctl {shlex.join(words)}: {error.message}")
    assert wrong == []


@pytest.mark.usefixtures("dry")
def test_wrong_command_lines_are_seen() -> None:
    text = "```console\n$ X=1 atlctl ps --nope | cat  # why\nps\n$ make demo && .venv/bin/atlctl logs -f > out\n```\n"
    assert atlctl_lines(text) == [["ps", "--nope"], ["logs", "-f"]]
    with pytest.raises(AtlctlError):
        parse_and_run(get_command(app), ["ps", "--nope"])


def test_documents_hold_command_lines() -> None:
    assert {len(atlctl_lines(read(name))) >= 20 for name in TOURS} == {True}


@functools.cache
def command_names() -> set[str]:
    aliases = set(table.completion_table()["aliases"])
    return {page.path for page in pages() if page.path} | aliases


def test_commands_named_in_sentences_exist() -> None:
    known = command_names()
    unknown = [
        (name, code)
        for name in DOCUMENTS
        for code in _INLINE.findall(prose(read(name)))
        if (match := re.match(r"atlctl ([a-z]+)", code)) and match[1] not in known
    ]
    assert unknown == []


@pytest.mark.parametrize("name", TOURS)
def test_every_command_is_in_the_tour(name: str) -> None:
    text = read(name)
    assert [page.path for page in pages() if f"atlctl {page.path}" not in text] == []


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", read("Makefile"), re.MULTILINE))
    unknown = []
    for name in DOCUMENTS:
        text = read(name)
        lines = [words for line in shell_lines(text) for words in simple_commands(line)]
        lines += [code.split() for code in _INLINE.findall(prose(text))]
        made = {words[1] for words in lines if words[:1] == ["make"] and len(words) == 2}
        unknown += [(name, target) for target in made - targets]
    assert unknown == []


@functools.cache
def sources() -> set[str]:
    """The files of the checkout, by each suffix of their paths."""
    paths = [path.relative_to(ROOT) for folder in ("atlctl", "tests") for path in (ROOT / folder).rglob("*.*")]
    return {"/".join(path.parts[start:]) for path in paths for start in range(len(path.parts))}


def test_programs_named_in_sentences_exist() -> None:
    documents = [name for name in DOCUMENTS if "/commands/" not in name and name != "CHANGELOG.md"]
    named = [(name, path) for name in documents for path in re.findall(r"`([\w/]+\.(?:py|sh|c))`", read(name))]
    theirs = ("train.py", "launch.sh", "NAME.py", "fix.py")
    assert [place for place in named if place[1] not in sources() and not place[1].endswith(theirs)] == []


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair[0])
def test_both_languages_have_the_same_structure(pair: tuple[str, str]) -> None:
    english, chinese = map(read, pair)
    assert [level for level, _ in headings(english)] == [level for level, _ in headings(chinese)]
    assert english.count("\n|") == chinese.count("\n|")
    assert [skeleton(*fence) for fence in _FENCE.findall(english)] == [
        skeleton(*fence) for fence in _FENCE.findall(chinese)
    ]


def skeleton(language: str, body: str) -> tuple[str, list[str]]:
    """The parts that are equal in both languages: code without comments, and typed lines of shown sessions."""
    lines = body.splitlines()
    if language in ("console", "text", ""):
        return language, [line if line.startswith("$ ") else "" for line in lines]
    return language, [line.partition("  # ")[0].rstrip() for line in lines]


def shown(text: str) -> list[str]:
    """The printed lines of the tool, from sessions and from outputs without their command line."""
    bodies = [body for language, body in _FENCE.findall(text) if language in ("console", "text")]
    return [line for body in bodies for line in body.splitlines() if not line.startswith(("$ ", "{"))]


@functools.cache
def sentences() -> tuple[str, str]:
    """All texts of the tool, in English and in Chinese: the catalogue, and the failure signatures."""
    with po_path("zh_CN").open("rb") as file:
        said = [(message.id, message.string) for message in read_po(file) if message.id]
    data = "".join(path.read_text("utf-8") for path in (ROOT / "atlctl" / "diagnosis").glob("*.toml"))
    english, chinese = (
        "\n".join(" ".join(t) if isinstance(t, tuple) else t for t in side) for side in zip(*said, strict=True)
    )
    return english + data, chinese + data


def phrases(line: str) -> list[str]:
    """Sequences of at least four English words; words with other characters are values."""
    words = re.sub(r"\S*(?:[^\sA-Za-z,;:.()'?!]|[a-z][A-Z])\S*", "|", line)
    return re.findall(r"\b[A-Za-z]+(?: [a-z]+){3,}\b", words)


def is_said(text: str, said: str, pieces: int = 3) -> bool:
    """Whether a sentence contains the text, or nested sentences contain its pieces."""
    cuts = [place.start() for place in re.finditer(r" |(?<=[\u4e00-\u9fff])(?=[\u4e00-\u9fff])", text)]
    return text in said or (
        pieces > 1 and any(text[:cut] in said and is_said(text[cut:].strip(), said, pieces - 1) for cut in cuts)
    )


def untrue(english: str, chinese: str) -> list[str]:
    """The parts of one sample line, in both languages, that no sentence of the tool contains."""
    known, said = sentences()
    if english == chinese:
        return [phrase for phrase in phrases(english) if phrase in known]
    old = [phrase for phrase in phrases(english) if phrase not in chinese and not is_said(phrase, known)]
    kept = [phrase for phrase in phrases(chinese) if phrase not in english]
    new = re.findall(r"[\u4e00-\u9fff]+", chinese)
    return old + kept + [phrase for phrase in new if not is_said(phrase, said)]


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair[0])
def test_samples_are_what_the_tool_prints_in_either_language(pair: tuple[str, str]) -> None:
    lines = zip(*(shown(read(name)) for name in pair), strict=True)
    assert [(line, wrong) for line in lines if (wrong := untrue(*line))] == []


def test_messages_in_troubleshooting_are_those_of_the_tool() -> None:
    pages = (read(f"docs/{lang}/troubleshooting.md") for lang in ("en", "zh"))
    rows = zip(*(re.findall(r"^\| (.+?) \|", page, re.MULTILINE) for page in pages), strict=True)
    pairs = [row for row in rows if row[0].startswith("`")]
    assert len(pairs) > 15
    assert [(pair, wrong) for pair in pairs if (wrong := untrue(*(re.sub("`.*", "", cell[1:]) for cell in pair)))] == []


def test_samples_that_the_tool_does_not_print_are_seen() -> None:
    english, chinese = "no failure in these logs", "这些日志中没有故障"
    assert untrue(english, chinese) == []
    assert untrue(english, english) == [english]
    assert untrue("nobody has fallen in all of these logs", chinese) == ["nobody has fallen in all of these logs"]
    assert untrue(english, "这份日志里面什么都没有") == ["这份日志里面什么都没有"]


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair[0])
def test_the_translation_is_chinese(pair: tuple[str, str]) -> None:
    english, chinese = map(read, pair)
    assert re.search(r"[\u4e00-\u9fff]", prose(english.replace("中文", ""))) is None
    paragraphs = [
        part for part in prose(chinese).split("\n\n") if re.search(r"[A-Za-z]{3} [a-z]+ [a-z]+ [a-z]+ ", part)
    ]
    assert [part for part in paragraphs if not re.search(r"[\u4e00-\u9fff]", part)] == []


#: Phrases that sound translated.
_TURNS = r"\b(?:somebody|nobody|whoever|who asks|of its own(?! \w)|told as|left out|stands? (?:below|above|there))\b"
#: Hand-written, current documents.
PROSE = [
    name
    for name in DOCUMENTS
    if name in ("README.md", "CONTRIBUTING.md") or re.match(r"docs/en/(?!soak)[\w-]+\.md", name)
]


@pytest.mark.parametrize("name", PROSE)
def test_documents_are_written_plainly(name: str) -> None:
    """Table rows are not checked: category titles come from the program."""
    lines = [line for line in prose(read(name)).splitlines() if not line.startswith("|")]
    assert [line for line in lines if re.search(_TURNS, line)] == []


def exit_codes(text: str) -> set[int]:
    """The numbers in the first cells of table rows."""
    return {int(code) for code in re.findall(r"^\| `?(\d+)`? \|", text, re.MULTILINE)}


@pytest.mark.parametrize("name", TOURS)
def test_exit_codes_are_those_of_the_program(name: str) -> None:
    assert exit_codes(read(name)) == set(ExitCode)


def stream_fields() -> set[str]:
    async def scenario(writer: Writer) -> None:
        sink = JsonSink(writer, 1)
        await sink.output(helpers.worker(0), "stdout", b"text\n\xff\n")
        await sink.finished(helpers.exited(0))
        sink.summary(0)

    out, _ = helpers.run(scenario)
    objects = test_jsonl.objects(out)
    return {key for item in objects for key in item} | set(objects[-1]["counts"])


def finding_fields() -> set[str]:
    """All fields of `errors -o json`."""
    cause = replace(ONE.root_causes[0], gpu=GpuIdentity())
    data = to_data(replace(ONE, root_causes=(cause,)), GUIDE)
    root, group, worker = data["root_causes"][0], data["cascade"][0], data["workers"][0]
    return {*data, *root, *root["gpu"], *root["frame"], *root["evidence"][0], *group, *worker}


def hang_fields() -> set[str]:
    """All fields of `stacks -o json`."""
    scene = hangs.job({5: hangs.rank(5, "sleep", children=[{"pid": 1}], stack=hangs.stack(*hangs.COLLECTIVE))})
    return set(keys({**to_stacks_data(scene, changes(scene, scene)), "workers": [worker_data("worker-0", None)]}))


def smoke_fields() -> set[str]:
    """The fixed fields of `smoke -o json`; figures are documented only by their check."""
    data = to_smoke_data(smoke_report(), [])
    return {*data, *data["findings"][0], *data["findings"][0]["culprit"], *data["checks"][0], "worker", "answered"}


def keys(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        yield from value
        yield from (key for item in value.values() for key in keys(item))
    elif isinstance(value, list):
        yield from (key for item in value for key in keys(item))


@pytest.mark.parametrize("folder", ["docs/en", "docs/zh"])
def test_json_fields_are_documented(folder: str) -> None:
    told = {"exec": stream_fields(), "errors": finding_fields(), "stacks": hang_fields(), "smoke": smoke_fields()}
    for name, fields in told.items():
        named = set(_INLINE.findall(read(f"{folder}/{name}.md")))
        assert fields - named == set(), name


@pytest.mark.parametrize("folder", ["docs/en", "docs/zh"])
def test_states_are_documented(folder: str) -> None:
    assert [state for state in State if f"| {state} |" not in read(f"{folder}/glossary.md")] == []


def machine_paths() -> re.Pattern[str]:
    """The paths of this checkout and its owner's home, and real home folders."""
    here = [str(ROOT), pwd.getpwuid(os.getuid()).pw_dir]
    places = [re.escape(path) for path in here if path.count("/") > 1]
    made = ["/" + r"root\b", "/" + r"work/(?:main|shared)\b", "/" + r"home/(?!u\b|user\b)\w"]
    return re.compile(rf"(?<![\w.}}]){'(?:' + '|'.join([*places, *made]) + ')'}")


def test_no_file_names_a_path_of_a_machine() -> None:
    ignored = [line.rstrip("/") for line in read(".gitignore").splitlines() if line]
    pattern = machine_paths()
    found = []
    for folder, subfolders, files in os.walk(ROOT):
        skipped = [name for name in subfolders if name == ".git" or any(fnmatch.fnmatch(name, p) for p in ignored)]
        subfolders[:] = [name for name in subfolders if name not in skipped]
        for file in set(files) - {".git"}:  # a file if this is a worktree
            path = Path(folder, file)
            text = path.read_bytes().decode("utf-8", "replace")
            if match := pattern.search(text):
                found.append(f"{path.relative_to(ROOT)}: {match[0]}")
    assert found == []


def test_machine_paths_are_seen() -> None:
    for path in ("home/somebody/x", "root/.config", "work/main"):
        assert machine_paths().search(f"at /{path} there")
    assert not machine_paths().search("at /home/user/x, /work/train.py, /proc/1/root.txt")


@pytest.mark.parametrize("name", READMES)
def test_the_readme_is_short(name: str) -> None:
    """A picture at the top, details behind links."""
    lines = read(name).splitlines()
    assert len(lines) <= 150
    assert any(line.startswith("![") for line in lines[:12])


def test_what_the_readme_says_of_the_package() -> None:
    project = tomllib.loads(read("pyproject.toml"))["project"]
    minimum = project["requires-python"].removeprefix(">=")
    assert all(f"Python {minimum}" in read(name) for name in READMES)


def test_every_document_is_in_both_languages() -> None:
    english, chinese = ({path.name for path in ROOT.glob(f"docs/{lang}/**/*.md")} for lang in ("en", "zh"))
    # Tables extended by `make soak`, week by week.
    assert english - {"soak.md"} == chinese


@pytest.mark.parametrize("readme", READMES)
def test_every_document_is_reached_from_the_readme(readme: str) -> None:
    seen, queue = {readme}, [readme]
    for name in queue:
        for target in _LINK.findall(read(name)):
            path = (ROOT / name).parent.joinpath(target.partition("#")[0]).resolve()
            found = str(path.relative_to(ROOT)) if path.suffix == ".md" and path.is_file() else ""
            if found and found not in seen:
                seen.add(found)
                queue.append(found)
    assert set(DOCUMENTS) - seen == set()
