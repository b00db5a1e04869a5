"""FakeTensor: sizes, strides, dtype and device without data; FakeTensorMode: runs ATen ops on
them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from . import composite
from .cache import ResultCache
from .convert import fake_from_real
from .env import ShapeEnv
from .errors import FakeTensorError
from .interrupts import check
from .quiet import quiet
from .refusals import check_operands
from .registered import fake_kernel, run_registered
from .rules import RULES
from .rules.creation import is_factory, remember_result
from .rules.numbers import CHECKED, check_numbers
from .rules.written import count_writes, stamp
from .wrapper import WRAP, call_wrapper, inner_tensors, is_wrapper, is_wrapper_class, wrap_inner

aten = torch.ops.aten
META = torch.device("meta")
CPU = torch.device("cpu")
_make_subclass = torch.Tensor._make_subclass
_INFRA_KEY = torch._C._TorchDispatchModeKey.FAKE


def _without_warnings(func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Meta functions written in Python warn of an ``out`` that is resized, which only the program's
    own call may do.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return func(*args, **kwargs)


def _own_device(x: FakeTensor) -> torch.device:
    return META if x.fake_mode.in_kernel else x.fake_device


# C++ asks these of the tensor through dispatch, even while dispatch is disabled; None means "use
# the meta tensor's own"
QUERIES: dict[Any, Callable[[FakeTensor], Any]] = {
    torch.ops.prim.device.default: _own_device,
    # plain ints were asked for: specialises
    aten.size.default: lambda x: tuple(int(s) for s in x.size()),
    aten.stride.default: lambda x: tuple(int(s) for s in x.stride()),
    aten.storage_offset.default: lambda x: int(x.storage_offset()),
    aten.sym_size.default: lambda x: None,
    aten.sym_stride.default: lambda x: None,
    aten.sym_storage_offset.default: lambda x: None,
    aten.sym_numel.default: lambda x: None,
}


def concrete_device(device: torch.device) -> torch.device:
    """The device of a tensor that is made on ``device``: CPUs have no number, and of others the
    current one is taken.
    """
    if device.type in ("cpu", "meta"):
        return CPU if device.type == "cpu" else META
    if device.index is not None:
        return device
    module = torch.get_device_module(device.type)
    return torch.device(device.type, module.current_device() if module.is_available() else 0)


class FakeTensor(torch.Tensor):
    """A tensor with logical device ``fake_device`` and no data, backed by a meta tensor.

    Attributes:
        fake_mode: the FakeTensorMode that runs its ops.
        fake_device: the device it stands for; ``.device`` says the same.
        constant: a small real tensor with the value it had when that was set, or None; see
            ``known_value``.
        numbers: what was read off its data, with its stamp at that time: its item, how many of its
            elements are not zero.
        source: where the real tensor came from, for graph inputs.
    """

    fake_device: torch.device
    fake_mode: FakeTensorMode
    numbers: dict[str, tuple[tuple, Any]]
    _constant: tuple[torch.Tensor | None, tuple]
    source: str

    @staticmethod
    def __new__(
        cls,
        meta: torch.Tensor,
        device: torch.device,
        mode: FakeTensorMode,
        requires_grad: bool = False,
    ) -> FakeTensor:
        if device.type == "cuda" and not torch.backends.cuda.is_built():
            torch._C._ensureCUDADeviceGuardSet()
        device = concrete_device(device)
        self: Any = _make_subclass(
            cls, meta, requires_grad, dispatch_device=True, device_for_backend_keys=device
        )
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
        if types != _FAKES and any(map(is_wrapper_class, types)):
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
        """The real value, when it is known: a small constant that has not been written to."""
        value, at = self._constant
        return value if value is not None and at == stamp(self) else None

    @property
    def known_number(self) -> Any:
        """The only element, plain or symbolic, when it is known: of a constant, or of what was made
        from a symbolic size.
        """
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


_FAKES = (FakeTensor,)


def is_fake(value: object) -> bool:
    """Whether a value is a fake tensor, or one of a wrapper subclass around fakes."""
    if isinstance(value, FakeTensor):
        return True
    return is_wrapper(value) and all(
        isinstance(inner, FakeTensor) for inner in inner_tensors(value)
    )


def mode_of(value: Any) -> FakeTensorMode:
    """The mode of a tensor for which ``is_fake`` holds."""
    return next(inner_tensors(value)).fake_mode  # type: ignore[attr-defined]


def _take_modes() -> list[Any]:
    """Takes the dispatch modes that are no infrastructure off the stack; the last one first."""
    found = range(torch._C._len_torch_dispatch_stack())
    ours = [
        k for k in found if getattr(torch._C._get_dispatch_stack_at(k), "_mode_key", None) is None
    ]
    return [torch._C._pop_torch_dispatch_stack(None) for _ in ours]


class FakeTensorMode(TorchDispatchMode):
    """Runs ops on FakeTensors; while active, factory functions make FakeTensors as well.

    Args:
        shape_env: the environment of symbolic sizes; a new one by default.
        cache: whether results are remembered by op and operand metadata.
    """

    def __init__(self, shape_env: ShapeEnv | None = None, *, cache: bool = True) -> None:
        super().__init__()
        composite.install(FakeTensorMode)
        self.shape_env = ShapeEnv() if shape_env is None else shape_env
        self.in_kernel = False
        self.writes: dict[int, int] = {}  # to each memory, by its address
        # by their addresses, which no other gets while they are here
        self.stamped: dict[int, torch.UntypedStorage] = {}
        self.cache = ResultCache() if cache else None
        # this slot keeps torch from initialising CUDA for logical CUDA tensors
        self._mode_key = _INFRA_KEY
        self._entered: list[Any] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # otherwise torch wraps the handler in something that imports its compiler

    def __enter__(self) -> FakeTensorMode:
        if torch._C._get_dispatch_mode(_INFRA_KEY) is self:
            self._entered.append(None)
            return self
        dispatcher = torch._C._EnablePythonDispatcher()  # reaches the kernels of ``composite``
        # what fakes go through is not the program's: its modes must not see it
        hidden = _take_modes()
        super().__enter__()
        self._entered.append((dispatcher, hidden))
        return self

    def __exit__(self, exc_type: Any, exc_value: Any, traceback: Any) -> None:
        entered = self._entered.pop()
        if entered is not None:
            super().__exit__(exc_type, exc_value, traceback)
            # a signal's handler may keep this frame, and what it refers to
            entered[0].__exit__(None, None, None)
            for mode in reversed(entered[1]):
                torch._C._push_on_torch_dispatch_stack(mode)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if types and types != _FAKES and any(map(is_wrapper_class, types)):
            with self:
                return call_wrapper(func, types, args, kwargs or {})
        query = QUERIES.get(func)
        if query is not None:
            return query(args[0])
        if func is WRAP:
            return wrap_inner(*args)
        return self.run_op(func, args, kwargs or {})

    # -- making fakes ------------------------------------------------------------------------------

    def from_real(
        self,
        t: torch.Tensor,
        *,
        source: str = "",
        dynamic_dims: Iterable[int] | str = (),
        symbols: dict[int, torch.SymInt] | None = None,
    ) -> FakeTensor:
        """A fake with the metadata of ``t``: see ``convert.fake_from_real``."""
        return fake_from_real(self, t, source=source, dynamic_dims=dynamic_dims, symbols=symbols)

    def wrap(
        self, meta: torch.Tensor, device: torch.device, requires_grad: bool = False
    ) -> FakeTensor:
        """A fake over a given meta tensor (shares its storage identity, so views stay views)."""
        return FakeTensor(meta, device, self, requires_grad)

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

    # -- running ops -------------------------------------------------------------------------------

    def run_op(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """The result of one ATen op on fakes.

        Raises FakeTensorError for mixed devices or real operands, DataDependentError where data
        would be needed, and whatever eager raises for bad shapes.
        """
        check()
        cache = self.cache
        key = None
        if cache is not None and cache.admits(func):
            key = cache.key(func, args, kwargs)
            hit = cache.lookup(self, key)
            if hit is not None:
                return hit
        out = self._compute(func, args, kwargs)
        count_writes(self.writes, func, args, kwargs)
        if func in CHECKED:
            check_numbers(func, args, kwargs, out)
        check_operands(func, args, kwargs)
        if key is not None and cache is not None and self.shape_env.is_recording:
            cache.store(key, out, args)
        if any(
            type(arg) is FakeTensor and (arg._constant[0] is not None or arg.numbers)
            for arg in args
        ):
            remember_result(func, args, kwargs, out)
        return out

    def _compute(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        rule = RULES.get(func)
        if rule is not None:
            out = rule(self, func, args, kwargs)
            if out is not NotImplemented:
                return out
        kernel = fake_kernel(func)
        if kernel is not None:
            return run_registered(self, kernel, func, args, kwargs)
        return self.run_meta(func, args, kwargs)

    def run_meta(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Runs torch's meta kernel of an op and wraps the result with the operands' logical
        device.
        """
        device = self.common_device(func, args, kwargs)
        if is_factory(func):
            asked = kwargs.get("device")
            device = (
                torch.device(asked) if asked is not None else device or torch.get_default_device()
            )
            kwargs = {**kwargs, "device": META}
            kwargs.pop("pin_memory", None)
        with (
            torch._C._DisableTorchDispatch(),
            torch._C._EnablePythonDispatcher(),
            torch._C._PreserveDispatchKeyGuard(),
            quiet,
        ):
            previous, self.in_kernel = self.in_kernel, True
            torch._C._set_meta_in_tls_dispatch_include(True)
            try:
                out = (
                    func(*args, **kwargs)
                    if "out" not in kwargs
                    else _without_warnings(func, args, kwargs)
                )
            finally:
                self.in_kernel = previous
        return self._wrap_result(out, device or CPU)

    def run_native(
        self, func: Any, args: tuple, kwargs: dict[str, Any], device: torch.device
    ) -> Any:
        """Runs an op's C++ meta kernel, which must know symbolic sizes; cheaper than
        ``run_meta``.
        """
        no_dispatch, no_python = (
            torch._C._DisableTorchDispatch(),
            torch._C._DisablePythonDispatcher(),
        )
        with no_dispatch, no_python, torch._C._PreserveDispatchKeyGuard():
            previous, self.in_kernel = self.in_kernel, True
            torch._C._set_meta_in_tls_dispatch_include(True)
            try:
                out = func(*args, **kwargs)
            finally:
                self.in_kernel = previous
        return self._wrap_result(out, device)

    def _wrap_result(self, out: Any, device: torch.device) -> Any:
        if isinstance(out, torch.Tensor):
            return out if isinstance(out, FakeTensor) else FakeTensor(out, device, self)
        if isinstance(out, (list, tuple)):
            wrapped = [self._wrap_result(x, device) for x in out]
            return wrapped if type(out) is list else tuple(wrapped)
        return out

    def common_device(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> torch.device | None:
        """The one device of all tensor operands; 0-dim CPU tensors go with any. None without
        tensors.

        Raises FakeTensorError for mixed devices and for real operands.
        """
        device = scalar_device = None
        for leaf in pytree.tree_leaves((args, kwargs)):
            if not isinstance(leaf, torch.Tensor):
                continue
            if not isinstance(leaf, FakeTensor):
                raise FakeTensorError(
                    f"{func} got a real tensor of shape {tuple(leaf.shape)}; convert it with "
                    f"from_real first"
                )
            if leaf.fake_mode is not self:
                raise FakeTensorError(f"{func} got fakes of two modes")
            found = leaf.fake_device
            if leaf.dim() == 0 and found.type == "cpu":
                scalar_device = found
            elif device is None:
                device = found
            elif device != found and func not in _MIXED_DEVICES:
                raise FakeTensorError(
                    f"{func}: expected all tensors on one device, got {device} and {found}"
                )
        return device or scalar_device


_MIXED_DEVICES = {
    aten.copy_.default,
    aten._to_copy.default,
    aten.index.Tensor,
    aten.index_put.default,
    aten.index_put_.default,
}
