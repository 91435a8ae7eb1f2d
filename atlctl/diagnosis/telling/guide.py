"""Texts for categories and signatures: titles, meanings and the next step, in English and Chinese."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from atlctl.diagnosis.result import Cause, Proof
from atlctl.diagnosis.signatures import Category, Signature, Text
from atlctl.i18n import Language, translated


def in_language(text: Text, language: Language) -> str:
    """The text in a language."""
    return text.zh if language == "zh" else text.en


class Guide:
    """Finds the texts of a cause's category and signature. The category may be a user's own.

    The first of several signatures with the same id is used: users' signatures come before the package's.
    """

    def __init__(self, categories: Mapping[str, Category], signatures: Iterable[Signature] = ()) -> None:
        self._categories = categories
        self._signatures: dict[str, Signature] = {}
        for signature in signatures:
            self._signatures.setdefault(signature.id, signature)

    @classmethod
    def builtin(cls, signatures: Iterable[Signature] = ()) -> Guide:
        """A guide with the package's categories and signatures. `signatures` come before the package's."""
        from atlctl.diagnosis.signatures import builtin

        own = builtin()
        return cls(own.categories, (*signatures, *own.signatures))

    def title(self, cause: Cause, language: Language) -> str:
        """The category's title; for a user's own category the signature's meaning; else the id."""
        if found := self._categories.get(cause.category):
            return in_language(found.title, language)
        signature = self._signature(cause)
        return in_language(signature.meaning, language) if signature else cause.category

    def meaning(self, cause: Cause, language: Language) -> str:
        """The meaning of the category in one sentence; empty if there is none."""
        found = self._categories.get(cause.category)
        return in_language(found.meaning, language) if found else ""

    def advice(self, cause: Cause, language: Language) -> str:
        """The signature's own advice, else its category's; empty if there is none.

        A victim's message can be the evidence for another rank's failure: signatures of other categories are ignored.
        """
        if signature := self._signature(cause):
            return in_language(signature.advice, language)
        found = self._categories.get(cause.category)
        return in_language(found.advice, language) if found else ""

    def hardware(self, cause: Cause) -> bool:
        """Whether the next step is to take a node or GPU out of service."""
        if signature := self._signature(cause):
            return signature.hardware
        found = self._categories.get(cause.category)
        return found.hardware if found else False

    def _signature(self, cause: Cause) -> Signature | None:
        found = self._signatures.get(cause.signature)
        return found if found and found.category == cause.category else None


@dataclass(frozen=True, slots=True)
class Manner:
    """How to show a diagnosis. `place` names the place of a proof, `next_command` the next command for a cause.

    `ranks`: list the end of each rank instead of the workers.
    """

    language: Language
    verbose: bool
    guide: Guide
    place: Callable[[Proof], str]
    next_command: Callable[[Cause], str | None]
    ranks: bool = False

    def word(self, text: str) -> str:
        """A message in the reader's language; the text of a log unchanged."""
        return translated(text, self.language)

    def fold(self, lines: int) -> int | None:
        """The limit of screen lines; None with -v."""
        return None if self.verbose else lines
