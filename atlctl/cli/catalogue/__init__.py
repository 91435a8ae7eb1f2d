"""Help texts by key, in English and Chinese.

Keys: `NAME.summary` (one line), `NAME.text` (more, optional), `NAME.examples`, where NAME is the command with dots
(`local.run`); `opt.OPTION` (the long option) and `arg.METAVAR` for parameters, `NAME.opt.OPTION` or
`NAME.arg.METAVAR` where one command needs its own words; `label.*` for headings.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Literal

Language = Literal["en", "zh"]


def language(env: Mapping[str, str] = os.environ) -> Language:
    """The reader's language: the first of LC_ALL, LC_MESSAGES, LANG that is set decides; zh* is Chinese."""
    for name in ("LC_ALL", "LC_MESSAGES", "LANG"):
        value = env.get(name, "")
        if value:
            return "zh" if value.lower().startswith("zh") else "en"
    return "en"


def texts(lang: Language) -> Mapping[str, str]:
    """All texts of a language."""
    if lang == "zh":
        from atlctl.cli.catalogue.zh import TEXTS
    else:
        from atlctl.cli.catalogue.en import TEXTS
    return TEXTS


def find(lang: Language, *keys: str) -> str:
    """The text of the first key that has one. Raises KeyError where none has."""
    table = texts(lang)
    for key in keys:
        if key in table:
            return table[key]
    raise KeyError(" or ".join(keys))


def has(key: str) -> bool:
    """True where the catalogue has that key (the languages hold the same ones)."""
    return key in texts("en")
