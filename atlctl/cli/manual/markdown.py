"""A Markdown page for each command, and the index of them with what holds for all."""

from __future__ import annotations

from atlctl.cli import catalogue, helptext
from atlctl.cli.catalogue import Language
from atlctl.cli.manual import facts
from atlctl.cli.manual.pages import GUIDES, Page


def documents(pages: list[Page], lang: Language) -> dict[str, str]:
    """Name of each page's file -> its text."""
    return {_file(page): _document(page, lang) for page in pages}


def _file(page: Page) -> str:
    return f"{page.slug}.md" if page.path else "README.md"


def _document(page: Page, lang: Language) -> str:
    label = facts.texts(lang)
    name = helptext.dotted(page.path)
    other = "../../en" if lang == "zh" else "../../zh"
    parts = [f"# {page.title}"]
    parts.append(f"[{'English' if lang == 'zh' else '中文'}]({other}/commands/{_file(page)})")
    parts.append(catalogue.find(lang, f"{name}.summary"))
    if catalogue.has(f"{name}.text"):
        parts.append(catalogue.find(lang, f"{name}.text"))
    parts += [f"## {label['page.usage']}", f"```text\n{helptext.usage(page.ctx)}\n```"]
    if catalogue.has(f"{name}.examples"):
        examples = catalogue.find(lang, f"{name}.examples")
        parts += [f"## {label['page.examples']}", f"```console\n{examples}\n```"]
    if page.commands:
        rows = [
            f"- [`atlctl {path}`]({path.replace(' ', '-')}.md) "
            f"{catalogue.find(lang, f'{helptext.dotted(path)}.summary')}"
            for path in page.commands
        ]
        parts += [f"## {label['page.commands']}", "\n".join(rows)]
    for heading, params in helptext.sections(page.command, page.ctx):
        if heading == "label.shared":
            continue
        rows = [
            f"- `{helptext.spelling(param).strip()}` {helptext.describe(page.path, param, lang)}" for param in params
        ]
        parts += [f"## {label[heading.replace('label', 'page')]}", "\n".join(rows)]
    if page.path:
        parts.append(label["page.shared"])
        if page.path in GUIDES:
            parts.append(label["page.more"].format(name=GUIDES[page.path]))
        parts.append(label["page.index"])
    else:
        for key, rows_of in (("exit", facts.exit_codes), ("environment", facts.environment), ("files", facts.files)):
            body = "\n".join(f"| `{first}` | {text} |" for first, text in rows_of(lang))
            parts += [f"## {label[f'page.{key}']}", f"{label[f'page.{key}_heads']}\n|---|---|\n{body}"]
        parts.append(label["page.generated"])
    return "\n\n".join(parts) + "\n"
