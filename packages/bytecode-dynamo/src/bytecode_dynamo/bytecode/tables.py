"""The two compressed tables of a code object: exceptions and source positions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import CodeType
from typing import NamedTuple

from .instruction import NO_POSITION, Position

# Kinds of entry in the position table.
ONE_LINE = 10
NO_COLUMNS = 13
LONG = 14
NO_LOCATION = 15


class ExceptionEntry(NamedTuple):
    """One range of the exception table, in code units."""

    start: int
    end: int
    target: int
    depth: int
    lasti: bool


def read_exception_table(table: bytes) -> Iterator[ExceptionEntry]:
    """Decode the exception table: big-endian groups of six bits, the first one marked."""
    data = iter(table)

    def number(first: int) -> int:
        value = first & 63
        while first & 64:
            first = next(data)
            value = value << 6 | first & 63
        return value

    for first in data:
        start = number(first)
        size = number(next(data))
        target = number(next(data))
        depth = number(next(data))
        yield ExceptionEntry(start, start + size, target, depth >> 1, bool(depth & 1))


def write_exception_table(entries: Sequence[ExceptionEntry]) -> bytes:
    """Encode the exception table."""
    out = bytearray()

    def number(value: int, mark: int) -> None:
        groups = [value & 63]
        while value := value >> 6:
            groups.append(value & 63 | 64)
        groups[-1] |= mark
        out.extend(reversed(groups))

    for start, end, target, depth, lasti in entries:
        number(start, 128)
        number(end - start, 0)
        number(target, 0)
        number(depth << 1 | lasti, 0)
    return bytes(out)


def _unsigned(out: bytearray, value: int) -> None:
    while value >= 64:
        out.append(value & 63 | 64)
        value >>= 6
    out.append(value)


def _signed(out: bytearray, value: int) -> None:
    _unsigned(out, -value << 1 | 1 if value < 0 else value << 1)


def write_position_table(spans: Sequence[tuple[Position, int]], first_line: int) -> bytes:
    """Encode (position, size in code units) spans, in the order of the code."""
    out = bytearray()
    line = first_line
    for position, size in spans:
        while size > 0:
            units = min(size, 8)
            size -= units
            line = _write_entry(out, position, units, line)
    return bytes(out)


def _write_entry(out: bytearray, position: Position, units: int, line: int) -> int:
    start_line, end_line, column, end_column = position

    def head(kind: int) -> None:
        out.append(128 | kind << 3 | units - 1)

    if start_line is None:
        head(NO_LOCATION)
        return line
    delta = start_line - line
    if column is None or end_column is None or end_line is None:
        head(NO_COLUMNS)
        _signed(out, delta)
        return start_line
    if end_line == start_line:
        width = end_column - column
        if delta == 0 and column < 80 and 0 <= width < 16:
            head(column >> 3)
            out.append((column & 7) << 4 | width)
            return start_line
        if 0 <= delta < 3 and column < 128 and end_column < 128:
            head(ONE_LINE + delta)
            out.extend((column, end_column))
            return start_line
    head(LONG)
    _signed(out, delta)
    _unsigned(out, end_line - start_line)
    _unsigned(out, column + 1)
    _unsigned(out, end_column + 1)
    return start_line


def positions_of(code: CodeType) -> list[Position]:
    """Positions by code unit, equal neighbours sharing one tuple."""
    out: list[Position] = []
    last = NO_POSITION
    for position in code.co_positions():
        if position != last:
            last = position
        out.append(last)
    return out
