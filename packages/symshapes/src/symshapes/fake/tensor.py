"""FakeTensor: sizes, strides, dtype and device without data."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from symshapes.env import ShapeEnv
from symshapes.rules.written import refuses_writes, stamp

from .wrapper import inner_tensors, is_wrapper, is_wrapper_class

aten = torch.ops.aten
META = torch.device("meta")
CPU = torch.device("cpu")
_make_subclass = torch.Tensor._make_subclass


class Mode(TorchDispatchMode):
    """The part of FakeTensorMode that fakes, conversion and the result cache use."""

    shape_env: ShapeEnv
    in_kernel: bool

    def run_op(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        raise NotImplementedError

    def empty(
        self,
        sizes: Iterable[Any],
        strides: Iterable[Any] | None = None,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str = CPU,
        requires_grad: bool = False,
    ) -> FakeTensor:
        """A new fake with the given sizes, contiguous unless strides are given."""
        dtype = torch.get_default_dtype() if dtype is None else dtype
        with torch._C._DisableTorchDispatch():
            if strides is None:
                meta = torch.empty(tuple(sizes), dtype=dtype, device=META)
            else:
                meta = torch.empty_strided(tuple(sizes), tuple(strides), dtype=dtype, device=META)
        return FakeTensor(meta, torch.device(device), self, requires_grad)

    def empty_like(self, t: FakeTensor) -> FakeTensor:
        """A new fake with the sizes, strides, dtype and device of ``t``."""
        return self.empty(
            t.shape, t.stride(), dtype=t.dtype, device=t.fake_device, requires_grad=t.requires_grad
        )


def _own_device(x: FakeTensor) -> torch.device:
    return META if x.fake_mode.in_kernel else x.fake_device


# C++ dispatches these queries even while dispatch is disabled; None means the meta tensor's answer
QUERIES: dict[Any, Callable[[FakeTensor], Any]] = {
    torch.ops.prim.device.default: _own_device,
    # these return plain ints, which specialises
    aten.size.default: lambda x: tuple(int(s) for s in x.size()),
    aten.stride.default: lambda x: tuple(int(s) for s in x.stride()),
    aten.storage_offset.default: lambda x: int(x.storage_offset()),
    aten.sym_size.default: lambda x: None,
    aten.sym_stride.default: lambda x: None,
    aten.sym_storage_offset.default: lambda x: None,
    aten.sym_numel.default: lambda x: None,
}


def concrete_device(device: torch.device) -> torch.device:
    """``device`` as a new tensor has it: no index on CPU, the current one elsewhere."""
    if device.type in ("cpu", "meta"):
        return CPU if device.type == "cpu" else META
    if device.index is not None:
        return device
    module = torch.get_device_module(device.type)
    return torch.device(device.type, module.current_device() if module.is_available() else 0)


def _make_in_inference_mode(*args: Any, **kwargs: Any) -> torch.Tensor:
    with torch.inference_mode():
        return _make_subclass(*args, **kwargs)


class FakeTensor(torch.Tensor):
    """A tensor with logical device ``fake_device`` and no data, backed by a meta tensor.

    Attributes:
        fake_mode: the FakeTensorMode that runs its ops.
        fake_device: the logical device, also ``.device``.
        constant: the small real value that was set last, or None; see ``known_value``.
        numbers: numbers read from the data ("item", "nonzero"), with the stamp of that read.
        source: the source of a graph input.
    """

    fake_device: torch.device
    fake_mode: Mode
    numbers: dict[str, tuple[tuple, Any]]
    _constant: tuple[torch.Tensor | None, tuple]
    source: str

    @staticmethod
    def __new__(
        cls, meta: torch.Tensor, device: torch.device, mode: Mode, requires_grad: bool = False
    ) -> FakeTensor:
        if device.type == "cuda" and not torch.backends.cuda.is_built():
            torch._C._ensureCUDADeviceGuardSet()
        device = concrete_device(device)
        # a detached inference tensor may be written to, others only in inference mode
        make = _make_in_inference_mode if refuses_writes(meta) else _make_subclass
        self: Any = make(
            cls, meta, requires_grad, dispatch_device=True, device_for_backend_keys=device
        )
        # a function that reads memory past the dispatcher gets an error, not a null pointer
        torch._C._set_throw_on_mutable_data_ptr(self)
        self.fake_device = device
        self.fake_mode = mode
        self._constant = (None, ())
        self.numbers = {}
        return self

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def _set_device(self, _: Any) -> None:
        pass  # torch assigns it when data is swapped; the logical device stays

    device: Any = property(lambda self: _own_device(self), _set_device)

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if types != FAKES and any(map(is_wrapper_class, types)):
            return NotImplemented
        query = QUERIES.get(func)
        if query is not None:
            return query(args[0])
        for leaf in pytree.tree_leaves((args, kwargs)):
            if isinstance(leaf, FakeTensor):
                return leaf.fake_mode.run_op(func, args, kwargs or {})
        return NotImplemented

    @property
    def constant(self) -> torch.Tensor | None:
        return self._constant[0]

    @constant.setter
    def constant(self, value: torch.Tensor | None) -> None:
        self._constant = (value, () if value is None else stamp(self))

    @property
    def known_value(self) -> torch.Tensor | None:
        """The value of a small constant that has not been written to, else None."""
        value, at = self._constant
        return value if value is not None and at == stamp(self) else None

    @property
    def known_number(self) -> Any:
        """The single element of a constant or of a tensor of one symbolic size, else None."""
        if self.known_value is not None:
            return self.known_value.item() if self.known_value.numel() == 1 else None
        at, number = self.numbers.get("item", (None, None))
        return None if number is None or at != stamp(self) else number

    def remember(self, value: torch.Tensor) -> None:
        """Notes that this tensor now has ``value``."""
        self.constant = value

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return (
            f"FakeTensor(shape={tuple(self.shape)}, dtype={str(self.dtype)[6:]}, "
            f"device={self.fake_device})"
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> FakeTensor:
        memo[id(self)] = copy = self.fake_mode.empty_like(self)
        return copy

    def tolist(self) -> Any:
        """Nested lists of numbers; each element is an ``item()``."""
        if self.known_value is not None:
            return self.known_value.tolist()
        if self.dim() == 0:
            return self.item()
        return [x.tolist() for x in self.unbind(0)]


FAKES = (FakeTensor,)


def is_fake(value: object) -> bool:
    """Whether a value is a fake tensor, or one of a wrapper subclass around fakes."""
    if isinstance(value, FakeTensor):
        return True
    return is_wrapper(value) and all(
        isinstance(inner, FakeTensor) for inner in inner_tensors(value)
    )
