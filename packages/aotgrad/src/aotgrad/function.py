"""Functions and modules compiled directly, without a capture in front: specialised per kind of
arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from symshapes import FakeTensorMode, ShapeEnv, is_wrapper
from torch.utils import _pytree as pytree

from aotgrad.compiling.captured_graph import with_tensors
from aotgrad.compiling.compilation import Compilation
from aotgrad.compiling.compile import CompileOptions
from aotgrad.compiling.specialise import Call, specialise_dispatch
from aotgrad.graphs.trace import fresh_fake
from aotgrad.running.fallback import TRANSFORMED, Fallback, is_transformed
from aotgrad.tracing.tracer import Tracer

from .effect_plan import InputSpec

_MOST_RECENT = 8  # kinds of arguments that are recognised without building their key


class AotFunction:
    """A function of tensors (in any pytree) that compiles itself for each kind of arguments.

    Kinds differ by shapes, strides, dtypes, devices, requires_grad, being leaves, which arguments
    are one tensor, the values of all other arguments, and autocast. The function must not depend on
    anything else.
    """

    def __init__(self, f: Callable[..., Any], options: CompileOptions) -> None:
        self._f = f
        self._options = options
        self._cache: dict[Hashable, Compilation] = {}
        self._recent: Call = self._general
        self._num_recent = 0
        self._transformed = Fallback(f, TRANSFORMED)
        self.__wrapped__ = f
        self.__name__ = getattr(f, "__name__", type(f).__name__)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._general(args, kwargs) if kwargs else self._recent(args)

    def _general(self, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        if is_transformed():
            return self._transformed(*args, **kwargs)
        leaves, spec = pytree.tree_flatten((args, kwargs))
        tensors: dict[int, torch.Tensor] = {}
        kinds: list[Hashable] = []
        for leaf in leaves:
            if isinstance(leaf, torch.Tensor):
                kinds.append(
                    (
                        list(tensors).index(id(leaf)) if id(leaf) in tensors else len(tensors),
                        *_kind(leaf),
                    )
                )
                tensors[id(leaf)] = leaf
            else:
                kinds.append((type(leaf), leaf))
        key = (spec, tuple(kinds), _autocast_state())
        compilation = self._cache.get(key)
        if compilation is None:
            compilation = self._cache[key] = self._compilation(leaves, spec, list(tensors.values()))
        call = compilation.variant(torch.is_grad_enabled())
        outputs = call(*tensors.values())
        if not kwargs and key[-1] is None and self._num_recent < _MOST_RECENT:
            known, self._recent = (
                self._recent,
                specialise_dispatch(args, call, compilation.out_spec, self._recent),
            )
            self._num_recent += self._recent is not known
        return pytree.tree_unflatten(outputs, compilation.out_spec)

    def _compilation(
        self, leaves: list[Any], spec: pytree.TreeSpec, tensors: list[torch.Tensor]
    ) -> Compilation:
        fake_mode = FakeTensorMode(ShapeEnv(allow_unbacked=True))
        position = {id(t): i for i, t in enumerate(tensors)}
        template = [
            ("tensor", position[id(x)]) if isinstance(x, torch.Tensor) else ("constant", x)
            for x in leaves
        ]

        def run(*inputs: Any) -> Any:
            args, kwargs = pytree.tree_unflatten(
                [inputs[v] if k == "tensor" else v for k, v in template], spec
            )
            return self._f(*args, **kwargs)

        # the arguments themselves must not be kept alive
        like = [
            (fresh_fake(t, False, fake_mode), isinstance(t, torch.nn.Parameter)) for t in tensors
        ]
        kinds = [(t.requires_grad, t.is_leaf) for t in tensors]

        def make_inputs() -> tuple[InputSpec, ...]:
            return tuple(
                InputSpec(f"x{i}", fresh_fake(fake, grad, fake_mode), static, grad, is_leaf)
                for i, ((fake, static), (grad, is_leaf)) in enumerate(zip(like, kinds))
            )

        def program(inputs: Sequence[Any], tracer: Tracer, wrap_constant: Any) -> Any:
            return run(*inputs)

        def eager(*inputs: Any) -> tuple[Any, ...]:
            return tuple(pytree.tree_leaves(run(*inputs)))

        return Compilation(program, make_inputs, (), eager, fake_mode, self._options)


class AotModule(torch.nn.Module):
    """A module whose ``forward`` is compiled; parameters and buffers stay those of ``module``."""

    def __init__(self, module: torch.nn.Module, options: CompileOptions) -> None:
        super().__init__()
        self.module = module

        def functional(
            training: tuple[bool, ...], tensors: dict[str, torch.Tensor], args: Any, kwargs: Any
        ) -> Any:
            with with_tensors(module, tensors):
                return module(*args, **kwargs)

        self._compiled = AotFunction(functional, options)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module's forward returns."""
        module = self.module  # tied tensors under all their names
        tensors = dict(
            [
                *module.named_parameters(remove_duplicate=False),
                *module.named_buffers(remove_duplicate=False),
            ]
        )
        training = tuple(m.training for m in self.module.modules())
        return self._compiled(training, tensors, args, kwargs)


def _kind(t: torch.Tensor) -> tuple[Hashable, ...]:
    kind = (t.shape, t.stride(), t.dtype, t.device, t.requires_grad, t.is_leaf, type(t), t.layout)
    if not is_wrapper(t):
        return kind
    names, context = t.__tensor_flatten__()  # type: ignore[attr-defined]
    return (*kind, repr(context), *(_kind(getattr(t, name)) for name in names))


def _autocast_state() -> Hashable:
    if not torch._C._is_any_autocast_enabled():
        return None
    devices = ("cpu", "cuda")
    return tuple((torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in devices)
