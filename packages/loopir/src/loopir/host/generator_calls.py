"""Calls of code generators. What one raises, returns wrongly or never returns is reported with its
name and what it was asked.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from symshapes import check

from loopir.backend import CodeGenerator, KernelSource, PreparesOperators
from loopir.errors import GeneratorError, LoopIRError, UnsupportedKernelError

if TYPE_CHECKING:
    from loopir.cache.store import ArtifactStore
    from loopir.ir.kernel import Kernel

T = TypeVar("T")
_POLL = 0.05


def generated(
    codegen: CodeGenerator, what: str, call: Callable[[], KernelSource], deadline: float | None
) -> KernelSource:
    """The source that ``call`` returns; ``what`` is what it generates, for messages."""
    source = ask(codegen, f"generate {what}", call, deadline)
    if not isinstance(source, KernelSource) or not isinstance(source.text, str):
        raise GeneratorError(
            f"{name_of(codegen)} returned {_shown(source)} from generate for {what}; it must be a "
            f"KernelSource with a text"
        )
    return source


def built(
    codegen: CodeGenerator,
    what: str,
    call: Callable[[], Sequence[Callable[..., None]]],
    number: int,
    deadline: float | None,
) -> list[Callable[..., None]]:
    """The ``number`` callables that ``call`` returns."""
    launchers = ask(codegen, f"build {what}", call, deadline)
    if not isinstance(launchers, (list, tuple)) or not all(map(callable, launchers)):
        raise GeneratorError(
            f"{name_of(codegen)} returned {_shown(launchers)} from build; it must be a list of "
            f"callables"
        )
    if len(launchers) != number:
        raise GeneratorError(
            f"{name_of(codegen)} returned {len(launchers)} callables from build for {what}"
        )
    return list(launchers)


def asked(
    codegen: CodeGenerator, what: str, question: Callable[[Kernel], bool], kernel: Kernel
) -> bool:
    """The answer to a question about a kernel; ``what`` it is, for messages."""
    answer = ask(codegen, what, lambda: question(kernel), None)
    if not isinstance(answer, bool):
        raise GeneratorError(
            f"{name_of(codegen)} returned {_shown(answer)} when asked to {what}; it must be a bool"
        )
    return answer


def refusal(codegen: CodeGenerator, kernel: Kernel) -> str:
    """The reason that a generator gives for a kernel that it does not support."""
    try:
        codegen.generate(kernel)
    except UnsupportedKernelError as error:
        return error.reason
    return f"it does not support {kernel.name}"


def prepare(
    operators: Sequence[str],
    codegens: Mapping[str, CodeGenerator],
    store: ArtifactStore,
    deadline: float | None,
) -> None:
    """Has each generator build what its operators among these need. Raises GeneratorError."""
    for codegen in codegens.values():
        if operators and isinstance(codegen, PreparesOperators):
            ask(codegen, "prepare operators", partial(codegen.prepare, operators, store), deadline)


def name_of(codegen: CodeGenerator) -> str:
    """How messages call a generator."""
    kinds = map(type, getattr(codegen, "parts", (codegen,)))
    names = " and ".join(f"{kind.__module__}.{kind.__qualname__}" for kind in kinds)
    return f"code generator {names} (device {codegen.device!r})"


def ask(codegen: CodeGenerator, what: str, call: Callable[[], T], deadline: float | None) -> T:
    """What ``call`` returns within ``deadline`` seconds; ``what`` it does, for messages."""
    try:
        return call() if deadline is None else _within(deadline, call)
    except LoopIRError:
        raise
    except _TooLate:
        raise GeneratorError(
            f"{name_of(codegen)} did not {what} within {deadline:g} seconds"
        ) from None
    except Exception as error:
        raise GeneratorError(
            f"{name_of(codegen)} raised when asked to {what}: {type(error).__name__}: {error}"
        ) from error


class _TooLate(Exception):
    """The deadline has passed."""


def _within(seconds: float, call: Callable[[], T]) -> T:
    """Runs ``call`` in a thread, which is left alone when time is up: Python can't stop it."""
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:
            errors.append(error)

    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(run,), name="code generator", daemon=True)
    thread.start()
    left = seconds
    while thread.is_alive() and left > 0:
        thread.join(min(_POLL, left))
        left -= _POLL
        check()
    if errors:
        raise errors[0]
    if not results:
        raise _TooLate
    return results[0]


def _shown(value: Any) -> str:
    text = repr(value)
    return f"{text[:60]}..." if len(text) > 60 else text
