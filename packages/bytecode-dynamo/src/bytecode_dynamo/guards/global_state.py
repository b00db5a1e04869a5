"""The state of the thread and process that captured graphs depend on."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.overrides import BaseTorchFunctionMode, _get_current_function_mode_stack
from torch.utils._device import DeviceContext

from bytecode_dynamo._hook import read_state, set_state_readers

from .step import describe

AUTOCAST_DEVICES = ("cpu", "cuda")


_C: Any = torch._C
# The low bits of a set of keys name backends, and decide nothing here; torch 2.11's guards leave
# some behind.
BACKENDS = _C.DispatchKeySet(_C.DispatchKey.Dense).raw_repr() - 1


@dataclass(frozen=True, slots=True)
class UsualKeys:
    """The dispatch keys that a thread includes and excludes by default.

    ``autocast``: the keys of devices for which autocast is off.
    """

    included: Any
    excluded: Any
    autocast: Any


@cache
def usual_keys(inference: bool) -> UsualKeys:
    """The default keys, in or outside inference mode."""
    key, only = _C.DispatchKey, _C.DispatchKeySet
    included, nothing = only(key.BackendSelect) | only(key.ADInplaceOrView), only(key.Undefined)
    with _C._ForceDispatchKeyGuard(included, nothing), torch.inference_mode(inference):
        keys = dispatch_keys()
        with _C._DisableAutocast():
            return UsualKeys(*keys, dispatch_keys()[1] - keys[1])


def dispatch_keys() -> tuple[Any, Any]:
    """The keys that this thread includes and excludes."""
    sets = _C._dispatch_tls_local_include_set(), _C._dispatch_tls_local_exclude_set()
    included, excluded = (
        _C.DispatchKeySet.from_raw_repr(keys.raw_repr() & ~BACKENDS) for keys in sets
    )
    return included, excluded


def _autocast() -> tuple[Any, ...]:
    if not torch._C._is_any_autocast_enabled():
        return ()
    states = [
        (d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in AUTOCAST_DEVICES
    ]
    return (*states, torch.is_autocast_cache_enabled())


def _function_modes() -> tuple[Any, ...]:
    if not torch._C._len_torch_function_stack():
        return ()
    return tuple(
        mode.device if isinstance(mode, DeviceContext) else type(mode)
        for mode in _get_current_function_mode_stack()
    )


READ_AS = {
    "grad_mode": "torch.is_grad_enabled()",
    "inference_mode": "torch.is_inference_mode_enabled()",
    "autocast": "torch.autocast (device, enabled, dtype; cache)",
    "default_dtype": "torch.get_default_dtype()",
    "deterministic": "torch.are_deterministic_algorithms_enabled()",
    "deterministic_warn_only": "torch.is_deterministic_algorithms_warn_only_enabled()",
    "function_modes": "the stack of torch function modes",
    "tf32": "TF32 in float32 products (torch.backends.cuda.matmul.fp32_precision)",
}
"""What programs call the fields."""


@dataclass(frozen=True, slots=True)
class GlobalState:
    """Grad and inference mode, autocast, default dtype, deterministic algorithms, and the stacks of
    modes.

    The default device is a torch function mode; other modes are represented by their class, and
    what capture reads from them has guards of its own. ``autocast`` is empty when no autocast is
    on. ``tf32``: whether float32 products on CUDA devices may use TF32, which kernels and
    recordings depend on; None without such devices.
    """

    grad_mode: bool
    inference_mode: bool
    autocast: tuple[Any, ...]
    default_dtype: torch.dtype
    deterministic: bool
    deterministic_warn_only: bool
    function_modes: tuple[Any, ...]
    torch_function_enabled: bool
    dispatch_modes: int
    functorch_active: bool
    tf32: bool | None
    dispatch_keys: tuple[Any, Any]
    words: tuple[int, ...] | None = field(default=None, compare=False, repr=False)

    @classmethod
    def now(cls) -> GlobalState:
        """The state of this thread."""
        return cls(
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            _autocast(),
            torch.get_default_dtype(),
            torch._C._get_deterministic_algorithms(),
            torch._C._get_deterministic_algorithms_warn_only(),
            _function_modes(),
            torch._C._is_torch_function_enabled(),
            torch._C._len_torch_dispatch_stack(),
            torch._C._are_functorch_transforms_active(),
            torch.backends.cuda.matmul.fp32_precision == "tf32",
            dispatch_keys(),
            read_state() if state_masks() is not None else None,
        )

    def difference(self, now: GlobalState) -> str | None:
        """The first difference, as one line."""
        for item in fields(self)[:-1]:
            old, new = getattr(self, item.name), getattr(now, item.name)
            if old != new and old is not None:
                read = READ_AS.get(item.name, item.name.replace("_", " "))
                return f"{read} was {describe(old)}, now {describe(new)}"
        if self.words is not None and now.words is not None:
            for k, ((old, mask), new) in enumerate(
                zip(self.masked_words(), now.words, strict=True)
            ):
                if (old ^ new) & mask:
                    return f"torch state of the thread, word {k}, was {old:#x}, now {new:#x}"
        return None

    def probes(self) -> list[tuple[Callable[[], Any], Any]]:
        """Built-in functions without arguments and the results that they must return.

        Together with the words they identify this state, except for the details of an active
        autocast or function mode (``needs_python``).
        """
        deterministic: list[tuple[Callable[[], Any], Any]] = [
            (torch._C._get_deterministic_algorithms, self.deterministic),
            (torch._C._get_deterministic_algorithms_warn_only, self.deterministic_warn_only),
        ]
        if self._has_tf32_probe:
            deterministic.append((torch._C._get_cublas_allow_tf32, self.tf32))
        if self.words is not None:
            return deterministic
        return [
            *deterministic,
            (torch.is_grad_enabled, self.grad_mode),
            (torch.is_inference_mode_enabled, self.inference_mode),
            (torch._C._is_any_autocast_enabled, bool(self.autocast)),
            (torch.get_default_dtype, self.default_dtype),
            (torch._C._len_torch_function_stack, len(self.function_modes)),
            (torch._C._is_torch_function_enabled, self.torch_function_enabled),
            (torch._C._len_torch_dispatch_stack, self.dispatch_modes),
            (torch._C._are_functorch_transforms_active, self.functorch_active),
            (dispatch_keys, self.dispatch_keys),
        ]

    @property
    def needs_python(self) -> bool:
        """Whether the probes and words don't identify the state."""
        return bool(self.autocast or self.function_modes) or (
            self.tf32 is not None and not self._has_tf32_probe
        )

    @property
    def _has_tf32_probe(self) -> bool:
        """Whether a built-in function detects it: it raises after the precision was set per
        backend.
        """
        try:
            return self.tf32 is not None and torch._C._get_cublas_allow_tf32() == self.tf32
        except RuntimeError:
            return False

    def masked_words(self) -> tuple[tuple[int, int], ...]:
        """The words that C compares, with the bits that count; empty when they can't be read."""
        masks = state_masks()
        if masks is None or self.words is None:
            return ()
        return tuple(zip(self.words, masks, strict=True))


ALL_BITS = 2**64 - 1
AUTOGRAD_RECORD_SIZE = 32


@contextlib.contextmanager
def _default_dtype():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64 if before is not torch.float64 else torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


# Changes of the state, and the index of the word that must follow each change.
EXPERIMENTS: tuple[tuple[Callable[[], Any], int], ...] = (
    (lambda: torch.set_grad_enabled(not torch.is_grad_enabled()), 0),
    (lambda: torch.inference_mode(not torch.is_inference_mode_enabled()), 0),
    (
        lambda: torch.autocast(
            "cpu", dtype=torch.bfloat16, enabled=not torch.is_autocast_enabled("cpu")
        ),
        2,
    ),
    (BaseTorchFunctionMode, 3),
    (torch._C.DisableTorchFunctionSubclass, 4),
    (_default_dtype, 5),
)


def _autograd_bytes(libraries: list[str]) -> list[int]:
    """The bytes of the thread's autograd record."""
    record = []
    for offset in range(AUTOGRAD_RECORD_SIZE):
        words = set_state_readers(*libraries, offset) and read_state()
        if not words:
            raise LookupError("a function is not exported")
        record.append(words[0])
    return record


def _flags_offset(libraries: list[str]) -> int:
    """The offset of the byte in the thread's autograd record that stores grad mode."""
    before = _autograd_bytes(libraries)
    with torch.set_grad_enabled(not torch.is_grad_enabled()):
        during = _autograd_bytes(libraries)
    differing = [k for k, (x, y) in enumerate(zip(before, during, strict=True)) if x != y]
    if len(differing) != 1:
        raise LookupError(f"autograd flags at {differing}")
    return differing[0]


@cache
def state_masks() -> tuple[int, ...] | None:
    """The bits to compare in each word, or None for a word that doesn't follow its setting.

    The autograd flags have bits that captured graphs don't depend on; all bits of other words
    count.
    """
    libraries = Path(torch.__file__).parent / "lib"
    suffix = ".dylib" if (libraries / "libc10.dylib").exists() else ".so"
    paths = [str(libraries / f"{name}{suffix}") for name in ("libc10", "libtorch_cpu")]
    masks = [0, *(ALL_BITS & ~BACKENDS,) * 2, *(ALL_BITS,) * 3]
    try:
        set_state_readers(*paths, _flags_offset(paths))
        before = list(read_state() or masks)
        for change, word in EXPERIMENTS:
            with change():
                during = list(read_state() or before)
            if during[word] == before[word] or list(read_state() or ()) != before:
                raise LookupError(f"word {word} does not follow its setting")
            masks[0] |= (during[0] ^ before[0]) if word == 0 else 0
    except Exception as error:
        set_state_readers()
        logging.getLogger("bytecode_dynamo.guards").info(
            "the state is read by Python functions: %s", error
        )
        return None
    return tuple(masks)
