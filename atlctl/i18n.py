"""Translatable messages: English in the code, other languages from gettext catalogues (`locale/`).

    raise TimedOut(Message("no answer from {worker} within {seconds:.0f} s", worker=name, seconds=limit))

A `Message` is a `str`: its English text, which is also what JSON, logs and comparisons use. It keeps its template and
values, so that `translated` can show it in another language. The templates are the msgids of the catalogue. `make
generate` extracts them; a test fails for a message without a translation.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, Self

if TYPE_CHECKING:
    import gettext

Language = Literal["en", "zh"]

_FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "locale")
_CATALOGUES: Mapping[Language, str] = {"zh": "zh_CN/LC_MESSAGES/atlctl.mo"}
#: Depth of nested messages that `from_data` accepts.
_DEEPEST = 8


def language(env: Mapping[str, str] = os.environ) -> Language:
    """The user's language: the first of LC_ALL, LC_MESSAGES and LANG that is set decides; zh* is Chinese."""
    for name in ("LC_ALL", "LC_MESSAGES", "LANG"):
        value = env.get(name, "")
        if value:
            return "zh" if value.lower().startswith("zh") else "en"
    return "en"


def translated(text: str, lang: Language | None = None) -> str:
    """Translate a message to `lang` (default: the user's language). Any other text is unchanged."""
    return text.into(lang or language()) if isinstance(text, Message) else text


def edited(text: str, change: Callable[[str], str]) -> str:
    """Apply `change` to a text, or to each text within a message."""
    return text.edited(change) if isinstance(text, Message) else change(text)


class Message(str):
    """A translatable sentence or phrase. `template` is a literal for `str.format` with `values`, which may be messages.

    `str` operations (`+`, slices, f-strings) return plain English text: to combine messages, pass them as values or use
    `joined`.
    """

    __slots__ = ("template", "values")
    template: str
    values: Mapping[str, Any]

    def __new__(cls, template: str, /, **values: object) -> Self:
        self = super().__new__(cls, template.format_map(values) if values else template)
        self.template, self.values = template, values
        return self

    def into(self, lang: Language) -> str:
        if lang == "en":
            return str(self)
        template = self._template(catalogue(lang)) if self.template else ""
        if not self.values:
            return template
        return template.format_map({name: translated(value, lang) for name, value in self.values.items()})

    def filled(self, **values: Any) -> Message:
        """The same message with these values; for templates in tables."""
        return Message(self.template, **values)

    def edited(self, change: Callable[[str], str]) -> Message:
        """Apply `change` to each value that is a text but not a message."""
        texts = {name: edited(value, change) for name, value in self.values.items() if isinstance(value, str)}
        return self.filled(**{**self.values, **texts}) if texts else self

    def _template(self, known: gettext.NullTranslations) -> str:
        return known.gettext(self.template)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, _: object) -> Self:
        return self

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)


class _Plural(Message):
    """A message with a count. Made by `plural`."""

    __slots__ = ("many", "one")
    one: str
    many: str

    def filled(self, **values: Any) -> Message:
        return plural(self.one, self.many, values.pop("n"), **values)

    def _template(self, known: gettext.NullTranslations) -> str:
        return known.ngettext(self.one, self.many, self.values["n"])


def plural(one: str, many: str, n: int, /, **values: object) -> Message:
    """`plural("{n} GPU", "{n} GPUs", count)`: the form is chosen by the rules of each language."""
    message = _Plural(one if n == 1 else many, n=n, **values)
    message.one, message.many = one, many
    return message


class _About(Message):
    """A message with a gettext context, because its English is ambiguous. Made by `about`."""

    __slots__ = ("context",)
    context: str

    def filled(self, **values: Any) -> Message:
        return about(self.context, self.template, **values)

    def _template(self, known: gettext.NullTranslations) -> str:
        return known.pgettext(self.context, self.template)


def about(context: str, template: str, /, **values: object) -> Message:
    """A message with a context that selects its translation: `about("throttling", "hardware")`."""
    message = _About(template, **values)
    message.context = context
    return message


class _Joined(Message):
    """A sequence of messages. Made by `joined`."""

    __slots__ = ("parts", "separator")
    separator: str
    parts: tuple[str, ...]

    def into(self, lang: Language) -> str:
        return translated(self.separator, lang).join(translated(part, lang) for part in self.parts)

    def edited(self, change: Callable[[str], str]) -> Message:
        return joined((edited(part, change) for part in self.parts), self.separator)


COMMA, SEMICOLON, COLON, LIST = Message(", "), Message("; "), Message(": "), about("list", ", ")


def joined(parts: Iterable[str], separator: str = SEMICOLON) -> Message:
    """Join texts; the parts and the separator are translated."""
    parts = tuple(parts)
    message = str.__new__(_Joined, separator.join(parts))
    message.template, message.values, message.parts, message.separator = "", {}, parts, separator
    return message


class _Specific(Message):
    """A message about one worker or host, with the same for several alike. Made by `specific`."""

    __slots__ = ("shared",)
    shared: str


def specific(message: Message, shared: str) -> Message:
    """`message` names one worker or host; `general` replaces it with `shared` if it holds for several."""
    made = _Specific(message.template, **message.values)
    made.shared = shared
    return made


def general(text: str) -> str:
    """The text for several workers or hosts, see `specific`."""
    if isinstance(text, _Specific):
        return text.shared
    if isinstance(text, _Joined):
        return joined(map(general, text.parts), text.separator)
    if isinstance(text, Message) and any(isinstance(value, Message) for value in text.values.values()):
        return text.filled(**{k: general(v) if isinstance(v, str) else v for k, v in text.values.items()})
    return text


class _Given(Message):
    """A text with its own Chinese translation. Made by `given`."""

    __slots__ = ("chinese",)
    chinese: str

    def into(self, lang: Language) -> str:
        return self.chinese if lang == "zh" else str(self)


def given(english: str, chinese: str) -> Message:
    """A text of a data file that holds both languages."""
    message = str.__new__(_Given, english)
    message.template, message.values, message.chinese = "", {}, chinese
    return message


@functools.cache
def catalogue(lang: Language) -> gettext.NullTranslations:
    """The gettext catalogue of a language. Empty (English output) if it is not installed."""
    import gettext

    try:
        with open(os.path.join(_FOLDER, _CATALOGUES[lang]), "rb") as file:
            return gettext.GNUTranslations(file)
    except (KeyError, OSError):
        return gettext.NullTranslations()


# Messages stored in files, so that a later run can show them in its user's language.


def as_data(text: str) -> Any:
    """JSON values for a message, which `from_data` reads. Other text is returned as it is."""
    if isinstance(text, _Joined):
        return {"parts": [as_data(part) for part in text.parts], "by": as_data(text.separator)}
    if isinstance(text, _Given):
        return {"en": str(text), "zh": text.chinese}
    if not isinstance(text, Message):
        return text
    data: dict[str, Any] = {"template": text.template, "values": {k: _plain(v) for k, v in text.values.items()}}
    if isinstance(text, _Plural):
        data |= {"template": text.one, "many": text.many}
    if isinstance(text, _About):
        data["context"] = text.context
    return data


def _plain(value: object) -> Any:
    if isinstance(value, Message):
        return as_data(value)
    whole = isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value))
    return value if whole else str(value)


def from_data(data: object, english: str) -> str:
    """Restore the message whose English text is `english`; return `english` if `data` is malformed or differs.

    The file is untrusted, so only templates of the catalogue are accepted.
    """
    try:
        made = _made(data, 0)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return english
    return made if isinstance(made, str) and made == english else english


def _made(data: Any, depth: int) -> Any:
    if not isinstance(data, dict) or depth > _DEEPEST:
        return data
    if "parts" in data:
        return joined([_made(part, depth + 1) for part in data["parts"]], _made(data["by"], depth + 1))
    if "en" in data:
        return given(str(data["en"]), str(data["zh"]))
    template, many, context = data["template"], data.get("many"), data.get("context")
    known = catalogue("zh")
    found = known.ngettext(template, many, 1) if many else known.pgettext(context, template) if context else None
    if template in ((found or known.gettext(template)), many):
        raise ValueError("not a template of the catalogue")
    values = {str(key): _made(value, depth + 1) for key, value in data["values"].items()}
    if many:
        return plural(template, many, values.pop("n"), **values)
    return about(context, template, **values) if context else Message(template, **values)
