"""The app as plain data, and what is generated from it: completion's table, a page and a man page for each command.

    python -m atlctl.cli.table --write

writes `table.json` and `texts.LANGUAGE.json` of `atlctl/cli/completion/`, `completions/`, a page for each command
(`docs/en/commands`, `docs/zh/commands`) and man pages (`docs/man`); without `--write` it lists the files that are out
of date and exits with 1. A test does the same.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from typer.main import get_command

from atlctl import __version__
from atlctl.cli import helptext
from atlctl.cli.app import app
from atlctl.cli.completion.scripts import FILES, SCRIPTS
from atlctl.cli.parser import Group
from atlctl.i18n import Language, Message, about, translated
from atlctl.jobs.errors import ExitCode

#: Variables that a user may set or will see. Those of one part alone (of the demo's script, say) are not among them.
ENVIRONMENT = {
    "ATLCTL_JOB": Message("the current job; set inside workers of `run`, `local run` and `ssh run`"),
    "ATLCTL_RUN_DIR": Message("the folder of `run` on shared storage, as `--dir`"),
    "ATLCTL_JOB_KEY_FILE": Message("a file with the key of a job of `run` that has no such folder"),
    "ATLCTL_JOB_KEY": Message("the key itself"),
    "ATLCTL_CHECK_ITEMS": Message("the checks of `run`, as `--items`"),
    "ATLCTL_CHECK_BLOCK": Message("the faults that keep the command of `run` from starting, as `--block`"),
    "ATLCTL_BACKEND": Message("the backend of the jobs, as `--backend`"),
    "ATLCTL_NAMESPACE": Message("the Kubernetes namespace, as `--namespace`"),
    "ATLCTL_STATE_DIR": Message("the folder for jobs of this machine and notes; an absolute path"),
    "ATLCTL_SIGNATURES": Message("files with signatures of failures of your own, `:` between them"),
    "ATLCTL_BUSBW": Message("files with what your hardware should give, `:` between them"),
    "ATLCTL_WORKER": Message("set inside a worker: its name"),
    "ATLCTL_RECORDING": Message("given to the command of `record --on-failure`: the folder of the recording"),
    "ATLCTL_FAILED_WORKERS": Message("given to the command of `record --on-failure`: the workers that failed"),
    "KUBECONFIG": Message("kubeconfig files, `:` between them"),
    "SSH_AUTH_SOCK": Message("the ssh agent that is asked for keys"),
    "NO_COLOR": Message("no colours, whatever its value; `--color` has precedence"),
    "FORCE_COLOR": Message("colours without a terminal, too; CLICOLOR_FORCE does the same"),
    "LC_ALL": Message("the language of help texts, with LC_MESSAGES and LANG: the first that is set; zh* is Chinese"),
}

_FILES = {
    "$XDG_CONFIG_HOME/atlctl/config.toml": Message("settings of yours"),
    ".atlctl.toml": Message("settings of a project, in the working folder or the nearest folder above it"),
    "$XDG_STATE_HOME/atlctl/": Message("jobs that were started here, with their logs"),
    "~/.kube/config": Message("clusters, if KUBECONFIG is not set"),
    "~/.ssh/": Message("hosts, keys and host keys, as for ssh"),
}
_EXIT = {
    0: Message("success"),
    1: Message("the operation failed, or a question was answered with no; `errors --exit-code`: a failure was found"),
    2: Message("the command line or a setting is wrong"),
    3: Message("no such job, worker or selection"),
    4: Message("not authenticated, or not permitted"),
    5: Message("`smoke`: INCOMPLETE: no fault was found, but not everything was tested"),
    124: Message("a deadline passed"),
    125: Message("a command could not be started, or `exec` is not permitted to start it"),
    126: Message("a command is not executable"),
    127: Message("a command was not found"),
    130: Message("interrupted by Ctrl-C (SIGINT)"),
    141: Message("the reader of the output went away"),
    143: Message("ended by SIGTERM"),
    255: Message("a worker could not be reached, had ended, or was lost"),
}


@dataclass(frozen=True)
class Page:
    """One command: its full name below `atlctl` (empty for the program), its parser and a context to describe it."""

    path: str
    command: Any
    ctx: Any

    @property
    def title(self) -> str:
        """The command as it is typed: `atlctl local run`."""
        return f"atlctl {self.path}".strip()

    @property
    def slug(self) -> str:
        """The name of its files: `local-run`, and `atlctl` for the program itself."""
        return self.path.replace(" ", "-") or "atlctl"

    @property
    def commands(self) -> dict[str, str]:
        """Full names of the commands of a group, without aliases, and the line about each."""
        if not isinstance(self.command, Group):
            return {}
        return {f"{self.path} {name}".strip(): entry.summary for name, entry in self.command.table.items()}


def pages(command: Any = None, parent: Any = None) -> Iterator[Page]:
    """Every command of the app, groups before their commands. Imports all of them."""
    command = command or get_command(app)
    settings = {**command.context_settings}
    if parent is None:
        settings["help_option_names"] = ["-h", "--help"]
    ctx = command.context_class(command, info_name=command.path or "atlctl", parent=parent, **settings)
    yield Page(command.path, command, ctx)
    if isinstance(command, Group):
        for name in command.table:
            yield from pages(command.commands[name], ctx)


def markdown_pages(pages: list[Page], lang: Language) -> dict[str, str]:
    """Name of each page's file -> its text."""
    return {_markdown_name(page): _markdown(page, lang) for page in pages}


def _markdown_name(page: Page) -> str:
    return f"{page.slug}.md" if page.path else "README.md"


def _markdown(page: Page, lang: Language) -> str:
    command = page.command

    def say(text: str) -> str:
        return translated(text, lang)

    other = "../../en" if lang == "zh" else "../../zh"
    parts = [f"# {page.title}"]
    parts.append(f"[{'English' if lang == 'zh' else '中文'}]({other}/commands/{_markdown_name(page)})")
    parts.append(say(command.summary))
    if command.text:
        parts.append(say(command.text))
    parts += ["## " + say(Message("Usage")), f"```text\n{helptext.usage(page.ctx)}\n```"]
    if command.examples:
        parts += ["## " + say(Message("Examples")), f"```console\n{say(command.examples)}\n```"]
    if page.commands:
        rows = [
            f"- [`atlctl {path}`]({path.replace(' ', '-')}.md) {say(below)}" for path, below in page.commands.items()
        ]
        parts += ["## " + say(Message("Commands")), "\n".join(rows)]
    for heading, params in helptext.sections(command, page.ctx):
        if heading is helptext.SHARED and page.path:
            continue
        rows = [f"- `{helptext.spelling(param).strip()}` {helptext.describe(param, lang)}" for param in params]
        parts += ["## " + say(heading).rstrip(":："), "\n".join(rows)]
    if page.path:
        parts.append(
            say(Message("[Options of every command](README.md#options-of-every-command): before or after its name."))
        )
        parts.append(say(Message("More: [{name}](../{name}.md)", name=command.guide)))
        parts.append(say(Message("[All commands](README.md)")))
    else:
        for title, heads, rows_of in (
            (Message("Exit codes"), Message("| code | means |"), exit_codes),
            (about("manual", "Environment"), Message("| variable | says |"), environment),
            (Message("Files"), Message("| path | holds |"), files),
        ):
            body = "\n".join(f"| `{first}` | {text} |" for first, text in rows_of(lang))
            parts += ["## " + say(title), f"{say(heads)}\n|---|---|\n{body}"]
        parts.append(say(Message("Written by `make generate` from the command table and the help texts.")))
    return "\n\n".join(parts) + "\n"


def man_pages(pages: list[Page], lang: Language) -> dict[str, str]:
    """Name of each man page's file -> its text: `atlctl.1`, `atlctl-local-run.1`."""
    names = {page.path: _man_name(page) for page in pages}
    return {f"{_man_name(page)}.1": _man(page, names, lang) for page in pages}


def _man_name(page: Page) -> str:
    return page.title.replace(" ", "-")


def escape(text: str) -> str:
    """Text as roff takes it literally. A hyphen becomes a minus sign, so that options can be copied from the page."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^([.'])", r"\\&\1", text, flags=re.MULTILINE)


def _man(page: Page, names: dict[str, str], lang: Language) -> str:
    command = page.command

    def heading(title: Message) -> str:
        return f".SH {translated(title, lang)}"

    summary = translated(command.summary, lang)
    title = translated(Message("atlctl manual"), lang)
    lines = [f'.TH {_man_name(page).upper()} 1 "" "atlctl {__version__}" "{title}"']
    lines += [heading(Message("NAME")), f"{escape(_man_name(page))} \\- {escape(summary.rstrip('.。'))}"]
    lines += [heading(Message("SYNOPSIS")), f".B {escape(helptext.usage(page.ctx))}"]
    lines += [heading(Message("DESCRIPTION")), escape(summary)]
    if command.text:
        for paragraph in translated(command.text, lang).split("\n"):
            lines += [".PP", escape(paragraph)]
    if command.examples:
        lines += [heading(Message("EXAMPLES")), ".EX"]
        lines += escape(translated(command.examples, lang)).splitlines()
        lines.append(".EE")
    if page.commands:
        lines.append(heading(Message("COMMANDS")))
        for path, below in page.commands.items():
            lines += _item(f"{names[path]}(1)", translated(below, lang))
    for title_of, params in helptext.sections(command, page.ctx):
        if title_of is helptext.SHARED and page.path:
            continue
        lines.append(heading(_MAN[title_of]))
        for param in params:
            lines += _item(helptext.spelling(param).strip(), helptext.describe(param, lang))
    if page.path:
        shared = Message(
            "See atlctl(1) for the options of every command, taken before and after its name, and for the exit status."
        )
        lines += [".PP", escape(translated(shared, lang))]
    else:
        for title_of, rows in (
            (Message("EXIT STATUS"), exit_codes),
            (Message("ENVIRONMENT"), environment),
            (Message("FILES"), files),
        ):
            lines.append(heading(title_of))
            for first, text in rows(lang):
                lines += _item(first, text.replace("`", ""))
    near = [f".BR {escape(other)} (1)" for other in _near(page, names)]
    # Words of the second font of .BR are joined without a blank, so the comma follows the section.
    lines += [heading(Message("SEE ALSO")), *(f"{line}," for line in near[:-1]), near[-1]]
    return "\n".join(lines) + "\n"


#: Headings of a man page, by those of a help page.
_MAN = {
    helptext.ARGUMENTS: Message("ARGUMENTS"),
    helptext.OPTIONS: Message("OPTIONS"),
    helptext.SHARED: Message("OPTIONS OF EVERY COMMAND"),
}


def _item(term: str, text: str) -> list[str]:
    return [".TP", f".B {escape(term)}", escape(text)]


def _near(page: Page, names: dict[str, str]) -> list[str]:
    """The pages beside this one: the program, the group, the commands of the group."""
    if not page.path:
        return [name for path, name in names.items() if path and " " not in path]
    group = page.path.rpartition(" ")[0]
    same = [name for path, name in names.items() if group and path.startswith(f"{group} ") and path != page.path]
    below = [name for path, name in names.items() if path.startswith(f"{page.path} ")]
    return [names[""], *([names[group]] if group else []), *same, *below]


def exit_codes(lang: Language) -> list[tuple[str, str]]:
    """Code and meaning, rising."""
    return [(str(int(code)), translated(_EXIT[int(code)], lang)) for code in sorted(ExitCode)]


def environment(lang: Language) -> list[tuple[str, str]]:
    """Variable and meaning."""
    return [(name, translated(text, lang)) for name, text in ENVIRONMENT.items()]


def files(lang: Language) -> list[tuple[str, str]]:
    """Path and content."""
    return [(path, translated(text, lang)) for path, text in _FILES.items()]


_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def completion_table(command: Any = None, parent: Any = None) -> dict[str, Any]:
    """The table for completion: option -> kind of its value (null for flags), kinds of arguments, commands."""
    page = next(pages(command, parent))
    command = page.command
    visible = [param for param in command.get_params(page.ctx) if not param.hidden]
    node: dict[str, Any] = {
        "options": {
            opt: None if param.is_flag or param.count else param.metavar or ""
            for param in visible
            if param.param_type_name == "option"
            # typer keeps the names of the help option in a set, whose order changes from run to run.
            for opt in sorted(param.opts, key=lambda opt: (len(opt), opt))
        }
    }
    arguments = [helptext.spelling(param) for param in visible if param.param_type_name == "argument"]
    if arguments:
        node["arguments"] = arguments
    if isinstance(command, Group):
        node["commands"] = {name: completion_table(command.commands[name], page.ctx) for name in command.table}
        aliases = {alias: name for name, entry in command.table.items() for alias in entry.aliases}
        if aliases:
            node["aliases"] = aliases
    elif not page.ctx.allow_interspersed_args:
        node["options_first"] = True
    return node


def completion_texts(every: Sequence[Page], lang: Language) -> dict[str, dict[str, str]]:
    """Descriptions for completion: full name of a command -> its options and commands -> their texts. The options of
    every command are listed only for the program itself, with the places of jobs."""
    found: dict[str, dict[str, str]] = {}
    for page in every:
        texts = {name.rpartition(" ")[2]: translated(text, lang) for name, text in page.commands.items()}
        for heading, params in helptext.sections(page.command, page.ctx):
            if heading is helptext.OPTIONS or (heading is helptext.SHARED and not page.path):
                texts |= {opt: helptext.describe(param, lang) for param in params for opt in param.opts}
        found[page.path] = texts
    found[""] |= {f":{place}": translated(text, lang) for place, text in _PLACES.items()}
    shared = found[""]
    return {
        path: {w: t for w, t in texts.items() if texts is shared or shared.get(w) != t} for path, texts in found.items()
    }


#: Where the jobs are that completion offers.
_PLACES = {
    "local": Message("job of this machine"),
    "ssh": Message("job on hosts"),
    "lists": Message("list of hosts"),
    "kubernetes": Message("job of the cluster"),
}


def generated() -> dict[str, str]:
    """Every generated file: path in the source tree -> content."""
    table = json.dumps(completion_table(), indent=1, sort_keys=False)
    files = {"atlctl/cli/completion/table.json": f"{table}\n"}
    files |= {f"completions/{FILES[shell]}": text for shell, text in SCRIPTS.items()}
    every = list(pages())
    places: dict[Language, str] = {"en": "docs/man/man1", "zh": "docs/man/zh_CN/man1"}
    for lang, man in places.items():
        texts = json.dumps(completion_texts(every, lang), indent=1, sort_keys=True, ensure_ascii=False)
        files[f"atlctl/cli/completion/texts.{lang}.json"] = f"{texts}\n"
        files |= {f"docs/{lang}/commands/{name}": text for name, text in markdown_pages(every, lang).items()}
        files |= {f"{man}/{name}": text for name, text in man_pages(every, lang).items()}
    return files


def stale(root: str = _ROOT) -> list[str]:
    """Generated files that differ from what they should be."""
    return [path for path, text in generated().items() if _read(os.path.join(root, path)) != text]


def write(root: str = _ROOT) -> list[str]:
    """Write the generated files that are out of date; returns their paths."""
    changed = stale(root)
    files = generated()
    for path in changed:
        target = os.path.join(root, path)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target, "w", encoding="utf-8") as file:
            file.write(files[path])
    return changed


def _read(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        return None


def main(arguments: list[str]) -> int:
    """`--write` writes what is out of date, otherwise list it; 1 where something is."""
    changed = write() if arguments == ["--write"] else stale()
    for path in changed:
        sys.stdout.write(f"{path}\n")
    return int(bool(changed) and arguments != ["--write"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
