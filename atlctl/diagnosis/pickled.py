"""Plain values out of a pickle from a source that is not trusted.

Python's own unpickler is not used, not even with `find_class` shut: a memo index of 2**28 in nine bytes makes it take
4 GiB, and a key made of shared tuples makes it hash for ever. Here only opcodes of plain values are known (those of
protocols 2 to 5: containers, text, bytes, numbers, True, False, None), keys become text, and every count is bounded.
"""

from __future__ import annotations

from struct import error as struct_error
from struct import unpack_from

#: Operations of one pickle: each makes at most one container of some 60 bytes.
MAX_OPERATIONS = 4_000_000
#: Containers that are open at once.
MAX_DEPTH = 100
#: Bytes of a whole number.
_NUMBER = 8


class NotPlain(ValueError):
    """The bytes are no pickle of plain values; the text says why."""


def load_plain(data: bytes) -> object:
    """The value of a pickle. Raises NotPlain. Values may be shared, even hold themselves: never walk them blindly."""
    try:
        return _load(data)
    except (IndexError, KeyError, struct_error):
        raise NotPlain("cut off or damaged") from None


def _load(data: bytes) -> object:
    """Runs the opcodes. The frequent ones come first: a dump of 2,000 collectives has 150,000 of them."""
    stack: list[object] = []
    below: list[list[object]] = []
    memo: dict[int, object] = {}
    at = 0
    for _ in range(MAX_OPERATIONS):
        op = data[at]
        at += 1
        if op == 0x68:  # BINGET
            stack.append(memo[data[at]])
            at += 1
        elif op == 0x4B:  # BININT1
            stack.append(data[at])
            at += 1
        elif op == 0x71:  # BINPUT
            memo[data[at]] = stack[-1]
            at += 1
        elif op == 0x6A:  # LONG_BINGET
            stack.append(memo[unpack_from("<I", data, at)[0]])
            at += 4
        elif op == 0x28:  # MARK
            if len(below) >= MAX_DEPTH:
                raise NotPlain("nested too deeply")
            below.append(stack)
            stack = []
        elif op == 0x5D:  # EMPTY_LIST
            stack.append([])
        elif op == 0x65:  # APPENDS
            items, stack = stack, below.pop()
            _list(stack[-1]).extend(items)
        elif op == 0x75:  # SETITEMS
            items, stack = stack, below.pop()
            _set(stack[-1], items)
        elif op == 0x7D:  # EMPTY_DICT
            stack.append({})
        elif op == 0x94:  # MEMOIZE
            memo[len(memo)] = stack[-1]
        elif op == 0x72:  # LONG_BINPUT
            memo[unpack_from("<I", data, at)[0]] = stack[-1]
            at += 4
        elif op in _SIZES:
            width, text = _SIZES[op]
            length = int.from_bytes(data[at : at + width], "little")
            at += width
            taken = data[at : at + length]
            stack.append(str(taken, "utf-8", "replace") if text else taken)
            at += length
        elif op in _NUMBERS:
            form, width = _NUMBERS[op]
            stack.append(unpack_from(form, data, at)[0])
            at += width
        elif op in _CONSTANTS:
            stack.append(_CONSTANTS[op])
        elif op == 0x8A:  # LONG1
            length = data[at]
            if length > _NUMBER:
                raise NotPlain("a number of more than 64 bits")
            stack.append(int.from_bytes(data[at + 1 : at + 1 + length], "little", signed=True))
            at += 1 + length
        elif op in (0x85, 0x86, 0x87):  # TUPLE1, TUPLE2, TUPLE3
            count = op - 0x84
            if len(stack) < count:
                raise NotPlain("cut off or damaged")
            stack[-count:] = [tuple(stack[-count:])]
        elif op == 0x74:  # TUPLE
            items, stack = stack, below.pop()
            stack.append(tuple(items))
        elif op == 0x61:  # APPEND
            item = stack.pop()
            _list(stack[-1]).append(item)
        elif op == 0x73:  # SETITEM
            value, key = stack.pop(), stack.pop()
            _set(stack[-1], [key, value])
        elif op == 0x80:  # PROTO
            if not 2 <= data[at] <= 5:
                raise NotPlain(f"protocol {data[at]}")
            at += 1
        elif op == 0x95:  # FRAME
            at += 8
        elif op == 0x2E:  # STOP
            return stack.pop()
        else:
            raise NotPlain(f"it asks for more than plain values (opcode 0x{op:02x})")
    raise NotPlain(f"more than {MAX_OPERATIONS} operations")


#: Opcode -> width of the length in front, and whether text follows (else bytes).
_SIZES = {
    0x58: (4, True),  # BINUNICODE
    0x8C: (1, True),  # SHORT_BINUNICODE
    0x8D: (8, True),  # BINUNICODE8
    0x42: (4, False),  # BINBYTES
    0x43: (1, False),  # SHORT_BINBYTES
    0x8E: (8, False),  # BINBYTES8
}
_NUMBERS = {0x4A: ("<i", 4), 0x4D: ("<H", 2), 0x47: (">d", 8)}  # BININT, BININT2, BINFLOAT
_CONSTANTS: dict[int, object] = {0x4E: None, 0x88: True, 0x89: False, 0x29: ()}


def _list(target: object) -> list[object]:
    if type(target) is not list:
        raise NotPlain("cut off or damaged")
    return target


def _set(target: object, items: list[object]) -> None:
    if type(target) is not dict or len(items) % 2:
        raise NotPlain("cut off or damaged")
    for place in range(0, len(items), 2):
        key = items[place]
        if type(key) is int:
            key = str(key)
        if type(key) is not str:  # the hash of text is cheap, and nobody outside can choose it
            raise NotPlain("a key that is no text")
        target[key] = items[place + 1]
