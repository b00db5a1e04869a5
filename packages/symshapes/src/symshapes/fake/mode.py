"""FakeTensorMode: runs ATen ops on fake tensors."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from typing import Any

import torch
from torch.utils import _pytree as pytree

from symshapes.env import ShapeEnv
from symshapes.errors import FakeTensorError
from symshapes.interrupts import check
from symshapes.quiet import quiet
from symshapes.rules import RULES
from symshapes.rules.creation import JOINING, is_factory, remember_result
from symshapes.rules.numbers import CHECKED, check_numbers
from symshapes.rules.written import count_writes

from . import composite
from .cache import ResultCache
from .convert import fake_from_real
from .refusals import check_operands
from .registered import fake_kernel, run_registered
from .tensor import CPU, FAKES, META, QUERIES, FakeTensor, Mode
from .wrapper import ON_INNER, call_wrapper, inner_tensors, is_wrapper_class

aten = torch.ops.aten
_INFRA_KEY = torch._C._TorchDispatchModeKey.FAKE


def mode_of(value: Any) -> FakeTensorMode:
    """The mode of a tensor for which ``is_fake`` holds."""
    return next(inner_tensors(value)).fake_mode  # type: ignore[attr-defined]


def _pop_user_modes() -> list[Any]:
    """Pops all dispatch modes but infrastructure modes, innermost first."""
    modes = map(torch._C._get_dispatch_stack_at, range(torch._C._len_torch_dispatch_stack()))
    count = sum(getattr(mode, "_mode_key", None) is None for mode in modes)
    return [torch._C._pop_torch_dispatch_stack(None) for _ in range(count)]


class FakeTensorMode(Mode):
    """Runs ops on FakeTensors; while active, factory functions make FakeTensors as well.

    Args:
        shape_env: the environment of symbolic sizes; a new one by default.
        cache: whether to cache results by op and operand metadata.
    """

    def __init__(self, shape_env: ShapeEnv | None = None, *, cache: bool = True) -> None:
        super().__init__()
        composite.install(FakeTensorMode)
        self.shape_env = ShapeEnv() if shape_env is None else shape_env
        self.in_kernel = False
        self.writes: dict[int, int] = {}  # write counts by storage address
        # by address; holding the storages keeps their addresses unique
        self.stamped: dict[int, torch.UntypedStorage] = {}
        self.cache = ResultCache() if cache else None
        # this slot keeps torch from initialising CUDA for logical CUDA tensors
        self._mode_key = _INFRA_KEY
        self._entered: list[Any] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch wraps the handler and imports its compiler

    @classmethod
    def decompose_in_inference_mode(cls) -> None:
        """Decomposes composite operators also where functionalisation meets them without autograd.

        Installs kernels once per process; costs 60 ms.
        """
        composite.install_in_inference_mode(FakeTensorMode)

    def __enter__(self) -> FakeTensorMode:
        if torch._C._get_dispatch_mode(_INFRA_KEY) is self:
            self._entered.append(None)
            return self
        dispatcher = torch._C._EnablePythonDispatcher()  # reaches the kernels of ``composite``
        # operators on fakes are not the program's, so its modes must not see them
        hidden = _pop_user_modes()
        super().__enter__()
        self._entered.append((dispatcher, hidden))
        return self

    def __exit__(self, exc_type: Any, exc_value: Any, traceback: Any) -> None:
        entered = self._entered.pop()
        if entered is not None:
            super().__exit__(exc_type, exc_value, traceback)
            # Leave explicitly: a signal handler may keep this frame alive.
            entered[0].__exit__(None, None, None)
            for mode in reversed(entered[1]):
                torch._C._push_on_torch_dispatch_stack(mode)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if types and types != FAKES and any(map(is_wrapper_class, types)):
            with self:
                return call_wrapper(func, types, args, kwargs or {})
        query = QUERIES.get(func)
        if query is not None:
            return query(args[0])
        if func in ON_INNER:
            with self:
                return ON_INNER[func](*args)
        return self.run_op(func, args, kwargs or {})

    from_real = fake_from_real

    # -- running ops -------------------------------------------------------------------------------

    def run_op(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """The result of one ATen op on fakes.

        Raises FakeTensorError for mixed devices or real operands, DataDependentError where data
        would be needed, and whatever eager raises for bad shapes.
        """
        check()
        if composite.is_composite(func) and func not in RULES:
            with self:
                return func.decompose(*args, **kwargs)
        cache = self.cache
        key = None
        if cache is not None and cache.admits(func):
            key = cache.key(func, args, kwargs)
            hit = cache.lookup(self, key)
            if hit is not None:
                return hit
        symbols = len(self.shape_env.unbacked_order)
        out = self._compute(func, args, kwargs)
        count_writes(self.writes, func, args, kwargs)
        if func in CHECKED:
            check_numbers(func, args, kwargs, out)
        check_operands(func, args, kwargs)
        if (args and (type(args[0]) in (int, float) or func in JOINING)) or any(
            type(arg) is FakeTensor and (arg._constant[0] is not None or arg.numbers)
            for arg in args
        ):
            remember_result(func, args, kwargs, out)
        is_new = len(self.shape_env.unbacked_order) > symbols  # each call has sizes of its own
        if key is not None and cache is not None and self.shape_env.is_recording and not is_new:
            cache.store(key, out, args)
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
        """Runs torch's meta kernel; the result gets the operands' logical device."""
        device = self.common_device(func, args, kwargs)
        if is_factory(func):
            requested = kwargs.get("device")
            if requested is not None:
                device = torch.device(requested)
            device = device or torch.get_default_device()
            kwargs = {**kwargs, "device": META}
            kwargs.pop("pin_memory", None)
        with quiet, warnings.catch_warnings() if "out" in kwargs else nullcontext():
            if "out" in kwargs:  # eager warns about a resized ``out``
                warnings.simplefilter("ignore")
            out = self._run_kernel(torch._C._EnablePythonDispatcher, func, args, kwargs)
        return self._wrap_result(out, device or CPU)

    def run_native(
        self, func: Any, args: tuple, kwargs: dict[str, Any], device: torch.device
    ) -> Any:
        """Runs a C++ meta kernel that supports symbolic sizes; cheaper than ``run_meta``."""
        out = self._run_kernel(torch._C._DisablePythonDispatcher, func, args, kwargs)
        return self._wrap_result(out, device)

    def _run_kernel(self, dispatcher: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        with (
            torch._C._DisableTorchDispatch(),
            dispatcher(),
            torch._C._PreserveDispatchKeyGuard(),
        ):
            previous, self.in_kernel = self.in_kernel, True
            torch._C._set_meta_in_tls_dispatch_include(True)
            try:
                return func(*args, **kwargs)
            finally:
                self.in_kernel = previous

    def _wrap_result(self, out: Any, device: torch.device) -> Any:
        if isinstance(out, torch.Tensor):
            return out if isinstance(out, FakeTensor) else FakeTensor(out, device, self)
        if isinstance(out, (list, tuple)):
            wrapped = [self._wrap_result(x, device) for x in out]
            return wrapped if type(out) is list else tuple(wrapped)
        return out

    def common_device(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> torch.device | None:
        """The device of all tensor operands, or None. A 0-dim CPU tensor goes with any device.

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
