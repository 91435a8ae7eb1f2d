"""Messages of programs on workers: English text with the data that the client needs to translate it."""

from __future__ import annotations

TYPE_CHECKING = False  # importing `typing` is slow
if TYPE_CHECKING:
    from typing import Any, Self


class Sentence(str):
    """English text; the client makes a message from its template and values (`jobs.fields.message`)."""

    __slots__ = ("template", "values")
    template: str
    values: dict[str, Any]

    def __new__(cls, template: str, **values: Any) -> Self:
        self = super().__new__(cls, template.format(**values))
        self.template, self.values = template, values
        return self


def plain(value: Any) -> Any:
    """`value` for JSON, with its sentences as data."""
    if isinstance(value, Sentence):
        return {"text": str(value), "template": value.template, "values": plain(value.values)}
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value
