"""Pending mutations: the contents of mutable objects, keyed by identity, with an undo journal.

A tracker never changes. Mutable contents (list items, dict entries, attributes, cells, iterator
positions) are in a *slot* here. A slot is an :class:`Identity`, or a pair of an identity and an
attribute name. A snapshot is the length of the journal; rollback undoes the entries after it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Any

from bytecode_dynamo.guards.source import Source
from bytecode_dynamo.marker import Marker

from .tracker import VariableTracker

MISSING: Any = Marker("missing")
DELETED: Any = Marker("deleted")
_NO_SLOT: Any = Marker("no slot")
_MOVES: Any = Marker("moves")


class Identity:
    """One mutable object: existing (``value`` and ``source``), or created while evaluating."""

    __slots__ = ("cls", "raised", "shell", "source", "value")

    def __init__(self, cls: type, value: Any = MISSING, source: Source | None = None) -> None:
        self.cls = cls
        self.value = value
        self.source = source
        self.shell: Any = None
        """For the built-in contents of a subclass instance: the instance's tracker."""
        self.raised = False
        """Whether it is an exception that was raised while evaluating."""

    @property
    def exists(self) -> bool:
        """Whether the object was there before the frame was entered."""
        return self.value is not MISSING

    def __repr__(self) -> str:
        return f"<{'existing' if self.exists else 'new'} {self.cls.__name__}>"


Slot = Hashable


def owner(slot: Any) -> Identity:
    """The object that a slot belongs to."""
    return slot[0] if type(slot) is tuple else slot


def describe_slot(slot: Any) -> str:
    """``L['self'].count`` for an attribute, the source for what a container or cell holds."""
    holder = owner(slot)
    name = holder.source.name if holder.source is not None else holder.cls.__name__
    return f"{name}.{slot[1]}" if isinstance(slot, tuple) else name


def holds_already(slot: Any, now: Any) -> bool:
    """Whether an attribute is to get the object that it has before the frame runs."""
    if not isinstance(slot, tuple) or not hasattr(now, "value"):
        return False
    attributes = getattr(owner(slot).value, "__dict__", {})
    return attributes.get(slot[1], MISSING) is now.value


class Effects:
    """Contents of slots, and the journal of their changes."""

    def __init__(self) -> None:
        self._contents: dict[Slot, Any] = {}
        self._initial: dict[Slot, Any] = {}
        self._journal: list[tuple[Slot, Any]] = []
        self._known: dict[int, tuple[Any, Any]] = {}

    # -- objects -----------------------------------------------------------------------------------

    def find(self, value: object) -> Any:
        """The tracker made for an existing object, or None."""
        entry = self._known.get(id(value))
        return entry[1] if entry is not None else None

    def remember(self, value: object, tracker: Any) -> Any:
        """Record the tracker of an existing object for later wraps."""
        self._known[id(value)] = (value, tracker)
        return tracker

    def same_type(self, identity: Identity) -> Iterator[Any]:
        """The trackers of other existing objects of the same type."""
        for value, tracker in self._known.values():
            if type(value) is identity.cls and value is not identity.value:
                yield tracker

    # -- contents ----------------------------------------------------------------------------------

    def set_initial(self, slot: Slot, contents: Any) -> None:
        """Record a slot's contents before evaluation; not a mutation."""
        self._initial[slot] = contents
        self._contents.setdefault(slot, contents)

    def read(self, slot: Slot, default: Any = MISSING) -> Any:
        """The contents of a slot."""
        return self._contents.get(slot, default)

    def write(self, slot: Slot, contents: Any) -> None:
        """Change the contents of a slot."""
        self._journal.append((slot, self._contents.get(slot, _NO_SLOT)))
        self._contents[slot] = contents

    def note_move(self, key: Identity) -> None:
        """Note that items of a container were added, removed or reordered: iterators over it
        notice, even when all is as before again.
        """
        self.write((key, _MOVES), object())

    def moves(self, key: Identity) -> object:
        """A new object after each :meth:`note_move`; MISSING before the first."""
        return self.read((key, _MOVES))

    def attributes(self, identity: Identity) -> dict[str, Any]:
        """The written attributes of an object, with their latest values in order of first write."""
        found: dict[str, Any] = {}
        for slot, _ in self._journal:
            if type(slot) is tuple and slot[0] is identity and slot[1] is not _MOVES:
                found[slot[1]] = self._contents[slot]
        return found

    @contextmanager
    def watched(self) -> Iterator[set[Slot]]:
        """Collects the slots that are read; what is written meanwhile has to be rolled back."""
        watched = self._contents = _Watched(self._contents)
        try:
            yield watched.read
        finally:
            self._contents = dict(watched)

    def slots(self) -> Iterator[Slot]:
        """All slots with contents."""
        return iter(self._contents)

    def slots_since(self, mark: int) -> list[Slot]:
        """The slots written since a mark."""
        return [slot for slot, _ in self._journal[mark:]]

    # -- snapshots ---------------------------------------------------------------------------------

    def mark(self) -> int:
        """A snapshot for :meth:`rollback`."""
        return len(self._journal)

    def rollback(self, mark: int) -> None:
        """Undo every write since the mark."""
        journal, contents = self._journal, self._contents
        while len(journal) > mark:
            slot, old = journal.pop()
            if old is _NO_SLOT:
                del contents[slot]
            else:
                contents[slot] = old

    def written_since(self, mark: int) -> Iterator[Any]:
        """The owners of slots written since a snapshot."""
        return (owner(slot) for slot, _ in self._journal[mark:])

    # -- results -----------------------------------------------------------------------------------

    def changed(self) -> Iterator[tuple[Slot, Any, Any]]:
        """The changed slots of existing objects: (slot, contents before or MISSING, contents now),
        in order of first write.
        """
        seen: set[Slot] = set()
        for slot, _ in self._journal:
            holder = owner(slot)
            if (
                slot in seen
                or not isinstance(holder, Identity)
                or not holder.exists
                or slot == (holder, _MOVES)
            ):
                continue
            seen.add(slot)
            before, now = self._initial.get(slot, MISSING), self._contents[slot]
            if before is not now and (self.moves(holder) is not MISSING or not _same(before, now)):
                yield slot, before, now


class _Watched(dict[Slot, Any]):
    """Contents of slots that note which of them are read."""

    def __init__(self, contents: dict[Slot, Any]) -> None:
        super().__init__(contents)
        self.read: set[Slot] = set()

    def __getitem__(self, slot: Slot) -> Any:
        self.read.add(slot)
        return super().__getitem__(slot)

    def get(self, slot: Slot, default: Any = None) -> Any:
        self.read.add(slot)
        return super().get(slot, default)


def _same(before: Any, now: Any) -> bool:
    """Whether two contents hold the same objects."""
    if type(before) is not type(now):
        return False
    if type(before) is tuple:
        return len(before) == len(now) and all(_are_one(a, b) for a, b in zip(before, now))
    if type(before) is dict:
        return list(before) == list(now) and all(_are_one(before[key], now[key]) for key in before)
    return False


def _are_one(before: Any, now: Any) -> bool:
    """Whether two trackers (or pairs) stand for one object: a lazy one has the same source."""
    if type(before) is type(now) is tuple:
        return all(map(_are_one, before, now))
    source = getattr(before, "source", None)
    return before is now or (source is not None and source is getattr(now, "source", None))


_CALLS = object()


class Deferred:
    """The deferred calls, stored in the effects so that rollback undoes them.

    Building the tracker of a call makes it.
    """

    def __init__(self, effects: Effects) -> None:
        self._effects = effects

    def add(self, call: VariableTracker) -> None:
        """Defer a call."""
        self._effects.write(_CALLS, (*self.calls(), call))

    def remove(self, call: VariableTracker) -> None:
        """Withdraw a deferred call."""
        self._effects.write(_CALLS, tuple(other for other in self.calls() if other is not call))

    def calls(self) -> tuple[VariableTracker, ...]:
        """The deferred calls."""
        return self._effects.read(_CALLS, ())
