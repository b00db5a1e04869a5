"""Stored cases: a text, the values that go in, and those that come out.

::

    # primops.graph 6
    def graph(x: f32[2, 3]) -> (f32[2],):
        sum: f32[2] = prims.sum(x, dims=(1,))
        return (sum,)

    #: given f32[2, 3] = 0.5 -1.25 inf 0 1 2
    #: gives f32[2] = inf 3

The elements of a tensor stand in row-major order, whatever its strides are.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from symshapes.text.tensors import TensorType, format_tensor_type, parse_tensor_type

from .report import Report

T = TypeVar("T")
TOLERANCES = {
    torch.float64: (1e-11, 1e-11), torch.float32: (2e-5, 2e-5), torch.float16: (4e-3, 4e-3),
    torch.bfloat16: (3e-2, 3e-2), torch.complex64: (2e-5, 2e-5), torch.complex128: (1e-11, 1e-11),
}  # fmt: skip
"""Relative and absolute: machines differ in the last bits of ``exp`` and in the order of sums."""


@dataclass(frozen=True)
class StoredCase:
    """One file. ``given`` and ``gives`` are tensors, numbers and None."""

    name: str
    text: str
    given: tuple[Any, ...]
    gives: tuple[Any, ...]


def format_case(text: str, given: Sequence[Any], gives: Sequence[Any]) -> str:
    """The content of a file."""
    lines = [f"#: given {_format(value)}" for value in given]
    lines += [f"#: gives {_format(value)}" for value in gives]
    return "\n".join([text, *lines]) + "\n"


def parse_case(name: str, content: str) -> StoredCase:
    """The inverse of ``format_case``."""
    text, _, values = content.partition("\n#: ")
    found: dict[str, list[Any]] = {"given": [], "gives": []}
    for line in values.splitlines():
        kind, _, value = line.removeprefix("#: ").partition(" ")
        found[kind].append(_parse(value))
    return StoredCase(name, text, tuple(found["given"]), tuple(found["gives"]))


def read_cases(folder: Path) -> list[StoredCase]:
    """The cases in a folder, by name."""
    return [parse_case(path.stem, path.read_text()) for path in sorted(folder.glob("*.txt"))]


def check_stored(
    report: Report,
    area: str,
    cases: Sequence[StoredCase],
    parse: Callable[[str], T],
    write: Callable[[T], str],
    run: Callable[[T, Sequence[Any]], Sequence[Any]],
) -> None:
    """Each text is read and checked by ``parse``, gives its values, and is printed unchanged.

    One of an older version is printed as a text of the current one that reads back.
    """
    for case in cases:
        with report.case(area, case.name):
            read = parse(case.text)
            written = write(read)
            if written.partition("\n")[0] != case.text.partition("\n")[0]:
                assert write(parse(written)) == written, f"is not printed as it reads:\n{written}"
            else:
                assert written == case.text, f"is printed as\n{written}"
            assert_stored(run(read, case.given), case.gives)


def assert_stored(
    results: Sequence[Any], gives: Sequence[Any], tolerances: dict[Any, Any] | None = None
) -> None:
    """Raises AssertionError unless results have the dtypes, sizes, strides and values stored."""
    assert len(results) == len(gives), f"{len(results)} results, stored are {len(gives)}"
    for number, (result, stored) in enumerate(zip(results, gives, strict=True)):
        if not isinstance(stored, torch.Tensor):
            assert type(result) is type(stored) and result == stored, f"{number}: {result}"
            continue
        given, wanted = (_format(x).partition(" = ")[0] for x in (result, stored))
        assert given == wanted, f"result {number} is {given}, stored is {wanted}"
        rtol, atol = (tolerances or TOLERANCES).get(stored.dtype, (0, 0))
        torch.testing.assert_close(
            result, stored, rtol=rtol, atol=atol, equal_nan=True,
            msg=lambda text, number=number: f"result {number}: {text}",
        )  # fmt: skip


def _format(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return repr(value)
    kind = TensorType(value.dtype, tuple(value.shape), value.stride(), value.device)
    numbers = " ".join(_number(item, value.dtype) for item in value.flatten().tolist())
    return f"{format_tensor_type(kind, str)} = {numbers}".rstrip()


def _number(item: complex, dtype: torch.dtype) -> str:
    """As many digits as tell the dtype's numbers apart."""
    if dtype in (torch.float32, torch.complex64):
        return f"{item:.9g}"
    return f"{item:.5g}" if dtype in (torch.float16, torch.bfloat16) else str(item)


def _parse(text: str) -> Any:
    shown, separator, numbers = text.partition(" =")
    if not separator:
        return ast.literal_eval(text)
    kind = parse_tensor_type(ast.parse(shown, mode="eval").body, ast.literal_eval)
    assert kind is not None
    read: Callable[[str], Any] = complex if kind.dtype.is_complex else float
    if not kind.dtype.is_floating_point and not kind.dtype.is_complex:
        read = ast.literal_eval
    values = torch.tensor([read(item) for item in numbers.split()], dtype=kind.dtype)
    result = torch.empty_strided(kind.shape, kind.strides, dtype=kind.dtype)
    return result.copy_(values.reshape(kind.shape))
