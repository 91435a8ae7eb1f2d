"""A terminal's screen: the bytes that a program writes, as rows of cells."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from rich.cells import cell_len

_SEQUENCE = re.compile(
    r"\x1b\[(?P<private>\?)?(?P<words>[\d;]*)(?P<last>[A-Za-z])"
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"
    r"|\x1b[()][A-Z0-9]"
    r"|\x1b."
    r"|(?P<one>[^\x1b])",
    re.DOTALL,
)


@dataclass(frozen=True)
class Look:
    """How a cell looks. `fore`: a colour of the 256, None for the terminal's own."""

    fore: int | None = None
    bold: bool = False
    dim: bool = False
    italic: bool = False
    underline: bool = False
    reverse: bool = False


PLAIN = Look()
_SET: dict[int, dict[str, bool]] = {
    1: {"bold": True}, 2: {"dim": True}, 3: {"italic": True}, 4: {"underline": True}, 7: {"reverse": True},
    22: {"bold": False, "dim": False}, 23: {"italic": False}, 24: {"underline": False}, 27: {"reverse": False},
}  # fmt: skip


class Screen:
    """`columns` wide, without a lower end. Cells are pairs of text and look; behind a wide character is an empty text.

    Raises ValueError for a sequence that it does not know: a picture of half of the output is worse than none.
    """

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self.rows: list[list[tuple[str, Look]]] = [[]]
        self.row = self.column = 0
        self.look = PLAIN

    def feed(self, data: bytes) -> None:
        for match in _SEQUENCE.finditer(data.decode("utf-8", "ignore")):
            if match["one"]:
                self._write(match["one"])
            elif match["last"] and not match["private"]:
                self._control(match["last"], [int(word or 0) for word in match["words"].split(";")])

    def _write(self, text: str) -> None:
        if text == "\n":
            self.row += 1
        elif text == "\r":
            self.column = 0
        elif text == "\b":
            self.column = max(0, self.column - 1)
        elif text >= " ":
            self._put(text)
        while len(self.rows) <= self.row:
            self.rows.append([])

    def _put(self, text: str) -> None:
        width = cell_len(text)
        if not width:  # joins the character before it
            before, look = self.rows[self.row][self.column - 1]
            self.rows[self.row][self.column - 1] = (before + text, look)
            return
        if self.column + width > self.columns:
            self.row, self.column = self.row + 1, 0
            while len(self.rows) <= self.row:
                self.rows.append([])
        line = self.rows[self.row]
        line.extend([(" ", PLAIN)] * (self.column + width - len(line)))
        line[self.column : self.column + width] = [(text, self.look)] + [("", self.look)] * (width - 1)
        self.column += width

    def _control(self, last: str, numbers: list[int]) -> None:
        count = max(1, numbers[0])
        line = self.rows[self.row]
        match last:
            case "m":
                self._style(numbers)
            case "K":
                start, end = {0: (self.column, None), 1: (0, self.column), 2: (0, None)}[numbers[0]]
                if end is None:
                    del line[start:]
                else:
                    line[start:end] = [(" ", PLAIN)] * len(line[start:end])
            case "J":
                if numbers[0] == 2:
                    self.rows[:] = [[] for _ in self.rows]
                else:
                    del line[self.column :]
                    del self.rows[self.row + 1 :]
            case "A":
                self.row = max(0, self.row - count)
            case "B":
                self._write("\n" * count)
            case "C":
                self.column = min(self.columns - 1, self.column + count)
            case "D":
                self.column = max(0, self.column - count)
            case "G":
                self.column = count - 1
            case "H":
                self.row, self.column = count - 1, max(1, numbers[-1] if len(numbers) > 1 else 1) - 1
                self._write("")
            case _:
                raise ValueError(f"an unknown sequence: {numbers}{last}")

    def _style(self, numbers: list[int]) -> None:
        rest = iter(numbers)
        for number in rest:
            if number == 0:
                self.look = PLAIN
            elif number in _SET:
                self.look = replace(self.look, **_SET[number])
            elif 30 <= number <= 37 or 90 <= number <= 97:
                self.look = replace(self.look, fore=number - 30 if number < 90 else number - 82)
            elif number == 39:
                self.look = replace(self.look, fore=None)
            elif number == 38 and next(rest) == 5:
                self.look = replace(self.look, fore=next(rest))
            else:
                raise ValueError(f"an unknown style: {numbers}")

    def replace(self, old: str, new: str) -> None:
        """Put `new` in the place of the word `old`; blanks behind it make up for the difference, so that lines stay."""
        for row in self.rows:
            text = "".join(letter or "\0" for letter, _ in row)
            for match in reversed([*re.finditer(rf"(?<![\w-]){re.escape(old)}(?![\w-])", text)]):
                look = row[match.start()][1]
                row[match.start() : match.end()] = [(letter, look) for letter in new]
                blanks = "".join(letter or "\0" for letter, _ in row).find("  ", match.start() + len(new))
                surplus = len(new) - len(old)
                if blanks >= 0 and surplus > 0:
                    room = re.match(" +", "".join(letter or "\0" for letter, _ in row[blanks:]))
                    del row[blanks : blanks + min(surplus, len(room[0]) - 1 if room else 0)]
                elif blanks >= 0:
                    row[blanks:blanks] = [(" ", PLAIN)] * -surplus

    def lines(self) -> list[list[tuple[str, Look]]]:
        """The rows without the blank ones at the end."""
        rows = list(self.rows)
        while rows and not "".join(text for text, _ in rows[-1]).strip():
            rows.pop()
        return rows

    def text(self) -> str:
        return "\n".join("".join(text for text, _ in line).rstrip() for line in self.lines())
