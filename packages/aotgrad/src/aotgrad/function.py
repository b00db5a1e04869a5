"""Functions and modules compiled directly, without a capture in front: specialised per kind of
arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import torch
from symshapes import FakeTensorMode, ShapeEnv, flatten, is_wrapper
from torch.utils import _pytree as pytree

from aotgrad.compiling.captured_graph import named_tensors, with_tensors
from aotgrad.compiling.compilation import Compilation
from aotgrad.compiling.compile import CompileOptions
from aotgrad.graphs.trace import AutocastState, fresh_fake
from aotgrad.running.fallback import TRANSFORMED, Fallback, is_transformed
from aotgrad.running.python_text import PythonWriter
from aotgrad.tracing.tracer import Tracer

from .effect_plan import InputSpec

_MOST_RECENT = 8  # kinds of arguments that are recognised without building their key
_MAX_ARGUMENTS = 16  # of a recognised call; with more, building the key costs little in comparison
Call = Callable[[tuple[Any, ...]], Any]


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
                index = list(tensors).index(id(leaf)) if id(leaf) in tensors else len(tensors)
                kinds.append((index, *_kind(leaf)))
                tensors[id(leaf)] = leaf
            else:
                kinds.append((type(leaf), leaf))
        autocast = AutocastState() if torch._C._is_any_autocast_enabled() else None
        key = (spec, tuple(kinds), autocast)
        compilation = self._cache.get(key)
        if compilation is None:
            compilation = self._cache[key] = self._compilation(leaves, spec, list(tensors.values()))
        call = compilation.variant(torch.is_grad_enabled())
        outputs = call(*tensors.values())
        if not kwargs and autocast is None and self._num_recent < _MOST_RECENT:
            general = self._recent
            self._recent = _specialised_dispatch(args, call, compilation.out_spec, general)
            self._num_recent += self._recent is not general
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
        training = tuple(m.training for m in self.module.modules())
        return self._compiled(training, named_tensors(self.module), args, kwargs)


def _kind(t: torch.Tensor) -> tuple[Hashable, ...]:
    kind = (t.shape, t.stride(), t.dtype, t.device, t.requires_grad, t.is_leaf, type(t), t.layout)
    if not is_wrapper(t):
        return kind
    names, context = flatten(t)
    return (*kind, repr(context), *(_kind(getattr(t, name)) for name in names))


def _specialised_dispatch(
    args: Sequence[Any], call: Callable[..., Any], spec: pytree.TreeSpec, otherwise: Call
) -> Call:
    """A function of an argument tuple: ``call``, where the arguments are tensors of the same kinds,
    else ``otherwise``.

    Args:
        args: those that ``call`` was compiled for, outside autocast.
        call: takes the tensors, returns flat outputs.
        spec: pytree of the outputs.
        otherwise: returned as it is when ``args`` are not distinct tensors.
    """
    is_plain = all(isinstance(a, torch.Tensor) for a in args) and len({id(a) for a in args}) == len(
        args
    )
    if not is_plain or not 0 < len(args) <= _MAX_ARGUMENTS:
        return otherwise
    out = PythonWriter()
    names = [f"x{i}" for i in range(len(args))]
    tests = [f"not {out.name('in_autocast', torch._C._is_any_autocast_enabled)}()"]
    if len(args) > 1:
        tests.append(f"len({{{', '.join(f'id({n})' for n in names)}}}) == {len(args)}")
    tests += [test for name, tensor in zip(names, args) for test in _kind_tests(out, name, tensor)]
    results = f"{out.name('compiled', call)}({', '.join(names)})"
    if spec.is_leaf():
        results = f"{results}[0]"
    elif spec.type is not tuple or not all(child.is_leaf() for child in spec.children()):
        unflatten = out.name("unflatten", pytree.tree_unflatten)
        results = f"{unflatten}({results}, {out.name('spec', spec)})"
    with out.block("def dispatch(args):"):
        with out.block(f"if len(args) == {len(args)}:"):
            out(f"{', '.join(names)}, = args")
            with out.block(f"if {' and '.join(tests)}:"):
                out(f"return {results}")
        out(f"return {out.name('otherwise', otherwise)}(args)")
    return out.load("dispatch")[0]


def _kind_tests(out: PythonWriter, name: str, like: torch.Tensor) -> Iterator[str]:
    yield f"type({name}) is {out.name(type(like).__name__, type(like))}"
    yield f"{name}.shape == {tuple(like.shape)}"
    yield f"{name}.requires_grad is {like.requires_grad}"
    if like.requires_grad:
        yield f"{name}.is_leaf is {like.is_leaf}"
    yield f"{name}.dtype is {out.name(str(like.dtype), like.dtype)}"
    if like.layout is torch.strided:
        yield f"{name}.stride() == {like.stride()}"
    yield f"{name}.layout is {out.name(str(like.layout), like.layout)}"
    yield f"{name}.device == {out.name(str(like.device), like.device)}"
