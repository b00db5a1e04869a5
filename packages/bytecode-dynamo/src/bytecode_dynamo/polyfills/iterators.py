"""Iterators that CPython writes in C, in Python (Modules/itertoolsmodule.c, Objects/iterobject.c,
Objects/enumobject.c).

Capture evaluates these classes in place of the ``native`` types. ``rebuild`` returns a native
iterator that continues from the current state.
"""

from __future__ import annotations

import collections
import copy
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar

POLYFILLS: list[type[IteratorPolyfill]] = []


class IteratorPolyfill:
    """Base of the polyfills."""

    native: ClassVar[Any] = None
    rebuilds_started: ClassVar[bool] = True
    """Whether ``rebuild`` also works after the first step."""

    def __init_subclass__(cls) -> None:
        POLYFILLS.append(cls)

    def __iter__(self) -> Any:
        return self


class FunctionIterator(IteratorPolyfill):
    """Base of iterators that apply a function to the elements of another iterator."""

    def __init__(self, function: Any, iterable: Iterable[Any], /) -> None:
        self.function = function
        self.iterator = iter(iterable)

    def rebuild(self) -> Any:
        return self.native(self.function, self.iterator)


class TakeWhile(FunctionIterator):
    native = itertools.takewhile
    stopped = False

    def __next__(self) -> Any:
        if not self.stopped:
            element = next(self.iterator)
            if self.function(element):
                return element
            self.stopped = True
        raise StopIteration

    def rebuild(self) -> Any:
        return itertools.takewhile(self.function, () if self.stopped else self.iterator)


class DropWhile(FunctionIterator):
    native = itertools.dropwhile
    started = False

    def __next__(self) -> Any:
        element = next(self.iterator)
        while not self.started and self.function(element):
            element = next(self.iterator)
        self.started = True
        return element

    def rebuild(self) -> Any:
        if not self.started:
            return FunctionIterator.rebuild(self)
        return advanced(1, itertools.dropwhile, bool, itertools.chain((False,), self.iterator))


class FilterFalse(FunctionIterator):
    native = itertools.filterfalse

    def __next__(self) -> Any:
        for element in self.iterator:
            if not (element if self.function is None else self.function(element)):
                return element
        raise StopIteration


class StarMap(FunctionIterator):
    native = itertools.starmap

    def __next__(self) -> Any:
        return self.function(*next(self.iterator))


class Compress(IteratorPolyfill):
    native = itertools.compress

    def __init__(self, data: Iterable[Any], selectors: Iterable[Any]) -> None:
        self.data = iter(data)
        self.selectors = iter(selectors)

    def __next__(self) -> Any:
        while True:
            element = next(self.data)
            if next(self.selectors):
                return element

    def rebuild(self) -> Any:
        return itertools.compress(self.data, self.selectors)


class Pairwise(IteratorPolyfill):
    native = itertools.pairwise
    previous: tuple[Any, ...] = ()

    def __init__(self, iterable: Iterable[Any], /) -> None:
        self.iterator = iter(iterable)

    def __next__(self) -> Any:
        if not self.previous:
            self.previous = (next(self.iterator),)
        pair = (*self.previous, next(self.iterator))
        self.previous = pair[1:]
        return pair

    def rebuild(self) -> Any:
        return itertools.pairwise(itertools.chain(self.previous, self.iterator))


class Accumulate(IteratorPolyfill):
    native = itertools.accumulate
    total: tuple[Any, ...] = ()

    def __init__(
        self,
        iterable: Iterable[Any],
        func: Callable[[Any, Any], Any] | None = None,
        *,
        initial: Any = None,
    ) -> None:
        self.iterator = iter(iterable)
        self.function = func
        self.initial = initial

    def __next__(self) -> Any:
        if not self.total and self.initial is not None:
            total = self.initial
        else:
            total = next(self.iterator)
            if self.total:
                (before,) = self.total
                total = before + total if self.function is None else self.function(before, total)
        self.total = (total,)
        return total

    def rebuild(self) -> Any:
        if not self.total:
            return itertools.accumulate(self.iterator, self.function, initial=self.initial)
        iterator = itertools.chain(self.total, self.iterator)
        return advanced(1, itertools.accumulate, iterator, self.function)


class Batched(IteratorPolyfill):
    native = getattr(itertools, "batched", None)  # from CPython 3.12 on

    def __init__(self, iterable: Iterable[Any], n: int) -> None:
        if n < 1:
            raise ValueError("n must be at least one")
        self.iterator = iter(iterable)
        self.size = n

    def __next__(self) -> Any:
        batch: list[Any] = []
        for element in self.iterator:
            batch.append(element)
            if len(batch) == self.size:
                break
        if not batch:
            raise StopIteration
        return tuple(batch)

    def rebuild(self) -> Any:
        return self.native(self.iterator, self.size)


class Chain(IteratorPolyfill):
    native = itertools.chain
    active: Iterable[Any] = ()

    def __init__(self, *iterables: Iterable[Any]) -> None:
        self.source = iter(iterables)

    def __next__(self) -> Any:
        while True:
            for element in self.active:
                return element
            self.active = iter(next(self.source))

    def rebuild(self) -> Any:
        return itertools.chain.from_iterable(itertools.chain((self.active,), self.source))


class ChainFromIterable(Chain):
    def __init__(self, iterable: Iterable[Iterable[Any]], /) -> None:
        self.source = iter(iterable)


class Cycle(IteratorPolyfill):
    native = itertools.cycle
    ended = False
    index = 0

    def __init__(self, iterable: Iterable[Any], /) -> None:
        self.iterator = iter(iterable)
        self.saved: list[Any] = []

    def __next__(self) -> Any:
        if not self.ended:
            for element in self.iterator:
                self.saved.append(element)
                return element
            self.ended = True
        if not self.saved:
            raise StopIteration
        element = self.saved[self.index]
        self.index = (self.index + 1) % len(self.saved)
        return element

    def rebuild(self) -> Any:
        rest = () if self.ended else self.iterator
        return advanced(
            len(self.saved) + self.index, itertools.cycle, itertools.chain(self.saved, rest)
        )


class Islice(IteratorPolyfill):
    native = itertools.islice
    taken = 0

    def __init__(self, iterable: Iterable[Any], /, *bounds: Any) -> None:
        self.following, self.stop, self.step = islice_bounds(*bounds)
        self.iterator = iter(iterable)

    def __next__(self) -> Any:
        while self.taken < self.following:
            next(self.iterator)
            self.taken += 1
        if self.stop is not None and self.taken >= self.stop:
            raise StopIteration
        element = next(self.iterator)
        self.taken += 1
        self.following += self.step
        if self.stop is not None:
            self.following = min(self.following, self.stop)
        return element

    def rebuild(self) -> Any:
        stop = None if self.stop is None else max(self.stop - self.taken, 0)
        return itertools.islice(self.iterator, self.following - self.taken, stop, self.step)


def islice_bounds(*bounds: Any) -> tuple[int, int | None, int]:
    """Start, stop and step of ``islice(iterable, *bounds)``; raises what that raises."""
    itertools.islice((), *bounds)
    given = slice(*bounds)
    return given.start or 0, given.stop, given.step or 1


class ZipLongest(IteratorPolyfill):
    native = itertools.zip_longest

    def __init__(self, *iterables: Iterable[Any], fillvalue: Any = None) -> None:
        self.iterators: list[Iterator[Any] | None] = [iter(iterable) for iterable in iterables]
        self.active = len(iterables)
        self.fillvalue = fillvalue

    def __next__(self) -> Any:
        if not self.active:
            raise StopIteration
        return tuple([self.element(index) for index in range(len(self.iterators))])

    def element(self, index: int) -> Any:
        """The next element of one iterable, or the fill value."""
        iterator = self.iterators[index]
        if iterator is None:
            return self.fillvalue
        for element in iterator:
            return element
        self.active -= 1
        if not self.active:
            raise StopIteration
        self.iterators[index] = None
        return self.fillvalue

    def rebuild(self) -> Any:
        iterators = [iterator or () for iterator in self.iterators]
        return itertools.zip_longest(*iterators, fillvalue=self.fillvalue)


class GroupBy(IteratorPolyfill):
    native = itertools.groupby
    rebuilds_started = False
    current: tuple[Any, ...] = ()
    """The key that was read last, and its element until a group yields it."""
    target: tuple[Any, ...] = ()
    """The key of the current group."""
    turn = 0
    """The number of the current group: earlier groups have ended."""

    def __init__(self, iterable: Iterable[Any], key: Callable[[Any], Any] | None = None) -> None:
        self.iterator = iter(iterable)
        self.key = key

    def read(self) -> None:
        element = next(self.iterator)
        self.current = (element if self.key is None else self.key(element), element)

    def belongs(self, target: Any) -> bool:
        """Whether the current key is that of a group."""
        return self.current[0] in (
            target,
        )  # by identity or equality, like PyObject_RichCompareBool

    def __next__(self) -> Any:
        self.turn += 1
        while not self.current or (self.target and self.belongs(self.target[0])):
            self.read()
        self.target = self.current[:1]
        return self.target[0], Grouper(self, self.target[0])

    def rebuild(self) -> Any:
        return itertools.groupby(self.iterator, self.key)


class Grouper(IteratorPolyfill):
    native = type(next(itertools.groupby("a"))[1])

    def __init__(self, groups: GroupBy, target: Any) -> None:
        self.groups = groups
        self.target = target
        self.turn = groups.turn

    def __next__(self) -> Any:
        groups = self.groups
        if groups.turn != self.turn:
            raise StopIteration
        if len(groups.current) == 1:
            groups.read()
        if not groups.belongs(self.target):
            raise StopIteration
        element = groups.current[-1]
        groups.current = groups.current[:1]
        return element


class TeeSource:
    """What the iterators of one ``tee`` share."""

    native: Any = None

    def __init__(self, iterable: Iterable[Any]) -> None:
        self.iterator = iter(iterable)
        self.elements: list[Any] = []


class Tee(IteratorPolyfill):
    native = type(itertools.tee(())[0])
    position = 0

    def __init__(self, source: TeeSource) -> None:
        self.source = source

    def __next__(self) -> Any:
        source = self.source
        if self.position == len(source.elements):
            source.elements.append(next(source.iterator))
        self.position += 1
        return source.elements[self.position - 1]

    def rebuild(self) -> Any:
        source = self.source
        if source.native is None:
            source.native, _ = itertools.tee(itertools.chain(source.elements, source.iterator))
        return advanced(self.position, copy.copy, source.native)


def tee(iterable: Iterable[Any], n: int = 2) -> tuple[Tee, ...]:
    source = TeeSource(iterable)
    return tuple([Tee(source) for _ in range(n)])


class CallableIterator(IteratorPolyfill):
    native = type(iter(int, 0))
    ended = False

    def __init__(self, function: Callable[[], Any], sentinel: Any) -> None:
        self.function = function
        self.sentinel = sentinel

    def __next__(self) -> Any:
        if not self.ended:
            try:
                element = self.function()
            except StopIteration:
                self.ended = True
                raise
            if element not in (self.sentinel,):
                return element
            self.ended = True
        raise StopIteration

    def rebuild(self) -> Any:
        return advanced(1, iter, int, 0) if self.ended else iter(self.function, self.sentinel)


class EmptySequence:
    """What an iterator over a sequence goes over after its end."""

    def __getitem__(self, index: int) -> Any:
        raise IndexError(index)


class SequenceIterator(IteratorPolyfill):
    native = type(iter(EmptySequence()))
    index = 0

    def __init__(self, sequence: Any) -> None:
        self.sequence = sequence

    def __next__(self) -> Any:
        try:
            element = self.sequence[self.index]
        except (IndexError, StopIteration):
            self.sequence = EmptySequence()
            raise StopIteration from None
        self.index += 1
        return element

    def rebuild(self) -> Any:
        made: Any = iter(self.sequence)
        made.__setstate__(self.index)
        return made


class Reversed(IteratorPolyfill):
    native = reversed

    def __init__(self, sequence: Any) -> None:
        self.index = len(sequence) - 1
        self.sequence = sequence

    def __next__(self) -> Any:
        if self.index >= 0:
            try:
                element = self.sequence[self.index]
            except (IndexError, StopIteration):
                self.index = -1
            else:
                self.index -= 1
                return element
        raise StopIteration

    def rebuild(self) -> Any:
        return reversed(_Reversible(self.sequence, self.index + 1))


class _Reversible:
    """A sequence whose length was asked for before: asking again would run code of the program, on
    an object that has no attributes yet.
    """

    def __init__(self, sequence: Any, length: int) -> None:
        self.sequence = sequence
        self.length: int | None = length

    def __len__(self) -> int:
        known, self.length = self.length, None
        return len(self.sequence) if known is None else known

    def __getitem__(self, index: int) -> Any:
        return self.sequence[index]


def rebuilt(polyfill: Any) -> Any:
    """The native iterator for a polyfill; called by generated code."""
    return polyfill.rebuild()


def advanced(steps: int, construct: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """An iterator after so many steps, or at its end; called by generated code."""
    iterator = construct(*args, **options)
    collections.deque(itertools.islice(iterator, steps), maxlen=0)
    return iterator
