"""A man page for each command, in the macros of man(7) that every `man` knows."""

from __future__ import annotations

import re

from atlctl import __version__
from atlctl.cli import catalogue, helptext
from atlctl.cli.catalogue import Language
from atlctl.cli.manual import facts
from atlctl.cli.manual.pages import Page


def documents(pages: list[Page], lang: Language) -> dict[str, str]:
    """Name of each man page's file -> its text: `atlctl.1`, `atlctl-local-run.1`."""
    names = {page.path: _name(page) for page in pages}
    return {f"{_name(page)}.1": _document(page, names, lang) for page in pages}


def _name(page: Page) -> str:
    return page.title.replace(" ", "-")


def escape(text: str) -> str:
    """Text as roff takes it literally. A hyphen becomes a minus sign, so that options can be copied from the page."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^([.'])", r"\\&\1", text, flags=re.MULTILINE)


def _document(page: Page, names: dict[str, str], lang: Language) -> str:
    label = facts.texts(lang)
    name = helptext.dotted(page.path)
    summary = catalogue.find(lang, f"{name}.summary")
    lines = [f'.TH {_name(page).upper()} 1 "" "atlctl {__version__}" "{label["man.manual"]}"']
    lines += [f".SH {label['man.name']}", f"{escape(_name(page))} \\- {escape(summary.rstrip('.。'))}"]
    lines += [f".SH {label['man.synopsis']}", f".B {escape(helptext.usage(page.ctx))}"]
    lines += [f".SH {label['man.description']}", escape(summary)]
    if catalogue.has(f"{name}.text"):
        for paragraph in catalogue.find(lang, f"{name}.text").split("\n"):
            lines += [".PP", escape(paragraph)]
    if catalogue.has(f"{name}.examples"):
        lines += [f".SH {label['man.examples']}", ".EX"]
        lines += escape(catalogue.find(lang, f"{name}.examples")).splitlines()
        lines.append(".EE")
    if page.commands:
        lines.append(f".SH {label['man.commands']}")
        for path in page.commands:
            lines += _item(f"{names[path]}(1)", catalogue.find(lang, f"{helptext.dotted(path)}.summary"))
    for heading, params in helptext.sections(page.command, page.ctx):
        if heading == "label.shared":
            continue
        lines.append(f".SH {label[heading.replace('label', 'man')]}")
        for param in params:
            lines += _item(helptext.spelling(param).strip(), helptext.describe(page.path, param, lang))
    if page.path:
        lines += [".PP", escape(label["man.shared"])]
    else:
        for key, rows in (("exit", facts.exit_codes), ("environment", facts.environment), ("files", facts.files)):
            lines.append(f".SH {label[f'man.{key}']}")
            for first, text in rows(lang):
                lines += _item(first, text.replace("`", ""))
    near = [f".BR {escape(other)} (1)" for other in _near(page, names)]
    # Words of the second font of .BR are joined without a blank: the comma stands behind the section.
    lines += [f".SH {label['man.see_also']}", *(f"{line}," for line in near[:-1]), near[-1]]
    return "\n".join(lines) + "\n"


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
