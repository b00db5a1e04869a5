"""The memory plan as a picture: buffers that live at the same time get different offsets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from .model import Buffer


def placed(buffers: Sequence[Buffer], calls: int) -> list[Buffer]:
    """The buffers of a program with ``calls`` calls, those in the picture with offsets: what it
    allocates, and inputs that it frees early. A buffer in the memory of a dead one is where that
    was.
    """
    blocks: dict[str, list[Buffer]] = {}
    for buffer in buffers:
        blocks.setdefault(buffer.memory, []).append(buffer)
    own = {name: block for name, block in blocks.items() if not _is_permanent(name, block, calls)}
    drawn: list[tuple[int, int, int, int]] = []  # birth, death, offset, end
    offsets: dict[str, int] = {}
    for name, block in sorted(own.items(), key=lambda item: (-_size(item[1]), _birth(item[1]))):
        birth, death, size, offset = _birth(block), max(b.death for b in block), _size(block), 0
        for other in sorted(drawn, key=lambda each: each[2]):
            is_beside = other[1] <= birth or other[0] >= death
            if not is_beside and other[2] < offset + size:
                offset = max(offset, other[3])
        offsets[name] = offset
        drawn.append((birth, death, offset, offset + size))
    return [replace(buffer, offset=offsets.get(buffer.memory)) for buffer in buffers]


def peak(buffers: Sequence[Buffer], calls: int) -> int:
    """The most bytes during a call beyond inputs and constants; what inputs free is available."""
    blocks: dict[str, list[Buffer]] = {}
    for buffer in buffers:
        if buffer.offset is not None:
            blocks.setdefault(buffer.memory, []).append(buffer)
    changes, given = [0] * (calls + 1), 0
    for block in blocks.values():
        changes[_birth(block)] += _size(block)
        changes[max(b.death for b in block)] -= _size(block)
        given += sum(buffer.size for buffer in block if buffer.kind == "input")
    return max(accumulate(changes[:-1]), default=given) - given


def _is_permanent(memory: str, block: Sequence[Buffer], calls: int) -> bool:
    """Whether the memory belongs to an input or constant that lives on."""
    root = next((buffer for buffer in block if buffer.name == memory), block[0])
    return root.kind == "constant" or (root.kind == "input" and root.death == calls)


def _size(block: Sequence[Buffer]) -> int:
    return max(buffer.size for buffer in block)


def _birth(block: Sequence[Buffer]) -> int:
    return min(buffer.birth for buffer in block)
