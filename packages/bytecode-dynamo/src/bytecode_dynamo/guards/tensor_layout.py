"""Finds by experiment where a tensor keeps its metadata in memory, for the guards in C.

No torch header is used. DLPack's public exchange API gives the address of a tensor's sizes.
Comparing tensors that differ in one property gives the other offsets. A self-test then changes
tensors in place and checks that the guards notice. If any step fails, the layout stays unknown and
guards on tensors run in Python.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from dataclasses import astuple, dataclass
from functools import cache, partial
from itertools import chain, combinations
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from bytecode_dynamo._hook import (
    GUARD_OPS,
    GuardProgram,
    read_memory,
    set_tensor_layout,
    sizes_address,
)

log = logging.getLogger("bytecode_dynamo.guards")

INLINE_DIMS = 5
# two bytes of dtype; device type, index, presence; flags above are derived from the strides
INFO_MASK = (1 << 40) - 1
OBJECT_HEADER = 16  # reference count and type
DTYPES = (torch.float, torch.double, torch.int32, torch.complex64, torch.bool)


class LayoutError(Exception):
    """An experiment gave an unexpected result."""


@dataclass(frozen=True, slots=True)
class TensorLayout:
    """Offsets in bytes, in the order that ``_hook.set_tensor_layout`` takes them."""

    impl: int
    ndim: int
    dims: int
    storage_offset: int
    info: int
    keys: int
    autograd: int
    requires_grad: int
    info_mask: int


def _word(address: int) -> int:
    return int.from_bytes(read_memory(address, 8), sys.byteorder)


def _expect(condition: bool, what: str) -> None:
    if not condition:
        raise LayoutError(what)


def _shape_reader() -> Callable[[torch.Tensor], int]:
    """A function that returns the address of a tensor's sizes."""
    api = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    _expect(api is not None, "this torch has no DLPack exchange API")
    return partial(sizes_address, api)


def _only(found: set[Any], what: str) -> Any:
    _expect(len(found) == 1, f"{what}: {sorted(found)}")
    return found.pop()


def _find_impl(
    read_shape: Callable[[torch.Tensor], int], probes: list[torch.Tensor]
) -> tuple[int, int]:
    """(offset of the implementation's pointer in the object, offset of the inline sizes in the
    implementation).
    """
    found: set[tuple[int, int]] = set()
    for tensor in probes:
        shape = read_shape(tensor)
        near = [
            (o, shape - _word(id(tensor) + o)) for o in range(OBJECT_HEADER, OBJECT_HEADER + 32, 8)
        ]
        found.add(_only({(o, d) for o, d in near if 0 < d < 512}, "place of the sizes"))
        strides = [_word(shape + 8 * (INLINE_DIMS + i)) for i in range(tensor.dim())]
        _expect(_word(shape - 8) == tensor.dim(), "number of dimensions")
        _expect(strides == list(tensor.stride()), "strides")
    return _only(found, "places of the sizes")


def _differing(a: list[int], b: list[int]) -> set[int]:
    return {8 * k for k, (x, y) in enumerate(zip(a, b, strict=True)) if x != y}


def _between_groups(groups: list[list[list[int]]]) -> set[int]:
    """Offsets of the words that differ between any two groups of tensors, but not within one.

    Memory that is not initialised may differ between two tensors, but hardly just between groups.
    """
    within = {o for first, *rest in groups for words in rest for o in _differing(first, words)}
    pairs = combinations([first for first, *_ in groups], 2)
    return set.intersection(*(_differing(a, b) for a, b in pairs)) - within


def _find_layout() -> TensorLayout:
    probes: list[torch.Tensor] = [
        torch.nn.Parameter(torch.empty(7, 11)),
        torch.nn.Parameter(torch.empty(3)),
        torch.empty(5, 3, 2),
        torch.nn.Parameter(torch.tensor(1.0)),
    ]
    impl_at, dims = _find_impl(_shape_reader(), probes)

    def impl(tensor: torch.Tensor) -> int:
        return _word(id(tensor) + impl_at)

    def words(tensor: torch.Tensor, start: int, end: int) -> list[int]:
        return [_word(impl(tensor) + o) for o in range(start, end, 8)]

    after = dims + 16 * INLINE_DIMS
    base = torch.arange(12.0)
    views = [base[1:5], base[3:7]]
    offsets = [words(v, after, after + 32) for v in views]
    moved = {8 * k for k, pair in enumerate(zip(*offsets, strict=True)) if pair == (1, 3)}
    storage_offset = after + _only(moved, "storage offset")
    by_dtype = [[torch.empty(3, dtype=dtype) for _ in range(4)] for dtype in DTYPES]
    key_sets = [
        {
            o
            for o in range(dims, dims + 200, 8)
            if _word(impl(t) + o) == torch._C._dispatch_keys(t).raw_repr()
        }
        for t in chain(probes, *by_dtype)
    ]
    keys = _only(set.intersection(*key_sets), "dispatch keys")
    infos = [[[w & INFO_MASK for w in words(t, after, keys)] for t in ts] for ts in by_dtype]
    info = after + _only(_between_groups(infos), "dtype")
    plain = torch.empty(3)
    before = words(plain, 0, dims - 8)
    plain.requires_grad_()
    autograd = _only(_differing(before, words(plain, 0, dims - 8)), "autograd record")
    _expect(before[autograd // 8] == 0, "autograd record of a plain tensor")
    leaf = _only(
        {_find_flag(p, impl(p) + autograd) for p in probes if p.is_leaf and p.is_floating_point()},
        "requires_grad",
    )
    return TensorLayout(
        impl_at, dims - 8, dims, storage_offset, info, keys, autograd, leaf, INFO_MASK
    )


def _find_flag(tensor: torch.Tensor, pointer: int) -> int:
    """Offset of the byte in the autograd record that stores requires_grad."""

    def record(flag: bool) -> bytes:
        tensor.requires_grad_(flag)
        return read_memory(_word(pointer), 192)

    wanted = tensor.requires_grad
    record(True)
    pairs = [(record(True), record(False)) for _ in range(4)]
    tensor.requires_grad_(wanted)
    found = {k for k in range(192) if all((on[k], off[k]) == (1, 0) for on, off in pairs)}
    return _only(found, "requires_grad flag")


def _no_grad(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def run(tensor: Any) -> None:
        with torch.no_grad():
            change(tensor)

    return run


def _set_data(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def run(tensor: Any) -> None:
        tensor.data = make(tensor)

    return run


CHANGES: dict[str, Callable[[Any], Any]] = {
    "size": _set_data(lambda t: torch.ones(3, 5)),
    "number of dimensions": _set_data(lambda t: torch.ones(4)),
    "strides": _set_data(lambda t: torch.ones(4, 3).t()),
    "dtype": _set_data(lambda t: t.data.to(torch.float16)),
    "half dtype": _set_data(lambda t: t.data.to(torch.bfloat16)),
    "requires_grad": lambda t: t.requires_grad_(False),
    "resize_": _no_grad(lambda t: t.requires_grad_(False).resize_(3, 7)),
    "t_": _no_grad(lambda t: t.t_()),
    "as_strided_": _no_grad(lambda t: t.as_strided_((3, 4), (0, 1))),
    "unsqueeze_": _no_grad(lambda t: t.unsqueeze_(0)),
    "empty": _set_data(lambda t: torch.empty(0)),
    "set_": _no_grad(lambda t: t.set_(torch.ones(5))),
    "class": lambda t: setattr(t, "__class__", torch.Tensor),
    "swap": lambda t: torch.utils.swap_tensors(t, torch.nn.Parameter(torch.ones(2))),
}


def _program(tensor: torch.Tensor, sizes: Any = None, strides: Any = None) -> Callable[[Any], bool]:
    """A check that a tensor given as the only argument is like this one now."""
    ops = GUARD_OPS
    expected = (
        ops["TENSOR"],
        -1,
        0,
        [tensor],
        sizes or tuple(tensor.shape),
        strides or tuple(tensor.stride()),
    )
    program = GuardProgram(((ops["ARGUMENT"], 0, -1, 0), expected), 1)
    return lambda value: program.check(_program, (value,))


def _self_test() -> None:
    """Tests that every in-place change is noticed, and that an unchanged tensor passes."""
    for what, change in CHANGES.items():
        tensor = torch.nn.Parameter(torch.ones(3, 4))
        check = _program(tensor)
        _expect(check(tensor), f"{what}: unchanged tensor")
        change(tensor)
        _expect(not check(tensor), what)
    check = _program(torch.empty(2, device="meta"))
    _expect(not check(torch.empty(2)), "device")
    check = _program(torch.ones(2, dtype=torch.cfloat))
    _expect(not check(torch.ones(2, dtype=torch.cfloat).conj()), "conjugation")
    tensor = torch.nn.Parameter(torch.ones(3, 4))
    check = _program(tensor)
    tensor.grad = torch.ones(3, 4)
    tensor.data = torch.zeros(3, 4)
    _expect(check(tensor), "benign changes")
    _self_test_dims()
    _self_test_grad()


def _self_test_dims() -> None:
    shape = (2, 3, 2, 1, 2, 3, 2)
    for count in range(len(shape) + 1):
        tensor = torch.empty(shape[:count])
        check = _program(tensor)
        _expect(check(torch.empty(shape[:count])), f"{count} dimensions")
        for d in range(count):
            other = torch.empty(tuple(n + (k == d) for k, n in enumerate(shape[:count])))
            _expect(not check(other), f"dimension {d} of {count}")
    base = torch.empty(3, 4, 5, 6)
    family = [
        base,
        base.contiguous(memory_format=torch.channels_last),
        base.transpose(0, 1),
        base[1:],
        base.expand(3, 4, 5, 6),
    ]
    anything = _program(base, (None,) * 4, (None,) * 4)
    _expect(all(map(anything, family)), "flags that follow from the strides")


def _self_test_grad() -> None:
    x = torch.ones(2, requires_grad=True)
    result = x * 2
    check = _program(result)
    _expect(
        check(result) and check(x * 3) and check(x) and not check(torch.ones(2)),
        "requires_grad of a result",
    )
    _expect(not _program(torch.ones(2))(result), "a result where none is expected")
    view = torch.ones(2)[:]
    check = _program(view)
    view.add_(x)
    _expect(not check(view), "a view that got a history")


@cache
def calibrate() -> TensorLayout | None:
    """Find and install the layout, once per process; None (and the reason in the log) if it cannot
    be trusted.
    """
    try:
        with (
            torch._C.DisableTorchFunction(),
            _disable_current_modes(),
            torch.inference_mode(False),
            torch.enable_grad(),
        ):
            found = _find_layout()
            set_tensor_layout(*astuple(found))
            _self_test()
    except Exception as error:
        set_tensor_layout()
        log.info("guards on tensors run in Python: %s: %s", type(error).__name__, error)
        return None
    return found
