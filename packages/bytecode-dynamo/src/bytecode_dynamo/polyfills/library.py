"""Python forms of functions written in C, evaluated instead of them."""

from __future__ import annotations

import bisect
import functools
import string
import types
from collections.abc import Callable, Iterable
from typing import Any


def generator_in_context(
    make: Callable[[], Any], function: Callable[..., Any]
) -> Callable[..., Any]:
    """A generator function decorated with a context manager, which is entered for each step and
    left at each ``yield``.
    """

    @functools.wraps(function)
    def generate(*args: Any, **kwargs: Any) -> Any:
        generator = function(*args, **kwargs)
        step, given = generator.send, None
        try:
            while True:
                with make():
                    response = step(given)
                try:
                    step, given = generator.send, (yield response)
                except GeneratorExit:
                    with make():
                        generator.close()
                    raise
                except BaseException as error:
                    step, given = generator.throw, error
        except StopIteration as stop:
            return stop.value

    return generate


def substitute(pattern: Any, function: Callable[[Any], str], text: str, count: int = 0) -> str:
    parts, end, left = [], 0, count or -1
    for match in pattern.finditer(text):
        if left == 0:
            break
        parts += [text[end : match.start()], function(match)]
        end, left = match.end(), left - 1
    return "".join([*parts, text[end:]])


def format_text(template: str, /, *args: Any, **kwargs: Any) -> str:
    return string.Formatter().vformat(template, args, kwargs)


def describe_list(value: list[Any]) -> str:
    return f"[{', '.join([repr(held) for held in value])}]"


def describe_tuple(value: tuple[Any, ...]) -> str:
    return f"({', '.join([repr(held) for held in value])}{',' * (len(value) == 1)})"


def describe_dict(value: dict[Any, Any]) -> str:
    return f"{{{', '.join([f'{key!r}: {held!r}' for key, held in value.items()])}}}"


def describe_proxy(value: types.MappingProxyType[Any, Any]) -> str:
    return f"mappingproxy({value.copy()!r})"


def describe_view(value: Iterable[Any]) -> str:
    return f"{type(value).__name__}({list(value)!r})"


def describe_namespace(value: Any) -> str:
    name = "namespace" if type(value) is types.SimpleNamespace else type(value).__name__
    return f"{name}({', '.join([f'{key}={held!r}' for key, held in vars(value).items()])})"


def count_elements(mapping: dict[Any, int], iterable: Iterable[Any]) -> None:
    for element in iterable:
        mapping[element] = mapping.get(element, 0) + 1


class ComparisonKey:
    """The key that ``functools.cmp_to_key`` creates for a value."""

    def __init__(self, compare: Callable[[Any, Any], int], obj: Any) -> None:
        self.compare = compare
        self.obj = obj

    def __lt__(self, other: ComparisonKey) -> bool:
        return self.compare(self.obj, other.obj) < 0

    def __gt__(self, other: ComparisonKey) -> bool:
        return self.compare(self.obj, other.obj) > 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ComparisonKey) and self.compare(self.obj, other.obj) == 0


def cmp_to_key(mycmp: Callable[[Any, Any], int]) -> Callable[[Any], ComparisonKey]:
    return lambda obj: ComparisonKey(mycmp, obj)


def bisect_right(items, item, low=0, high=None, *, key):
    return _bisect([key(other) for other in items], item, low, high, False)


def bisect_left(items, item, low=0, high=None, *, key):
    return _bisect([key(other) for other in items], item, low, high, True)


def insort_right(items, item, low=0, high=None, *, key):
    items.insert(_bisect([key(other) for other in items], key(item), low, high, False), item)


def insort_left(items, item, low=0, high=None, *, key):
    items.insert(_bisect([key(other) for other in items], key(item), low, high, True), item)


def _bisect(keys, item, low, high, left):
    return (bisect.bisect_left if left else bisect.bisect_right)(
        keys, item, low, len(keys) if high is None else high
    )


def describe_group(group):
    count = len(group.exceptions)
    return f"{group.message} ({count} sub-exception{'s' if count > 1 else ''})"
