"""The ``Prim`` object and its three readings.

Calling a prim dispatches on its operands: real tensors run the reference, ``TensorMeta``s run the
meta rule, and values of a graph under construction append a node to it. A call without tensor
operands (``full``, ``iota``, ``random_seed``) follows the interpreter installed by
``reading_with``, else it runs the reference.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from typing import Any, Protocol, TypeVar

import torch
from torch import fx

from primops.errors import PrimError
from primops.meta import TensorMeta, contiguous

Layout = Callable[[tuple[Any, ...], list[TensorMeta]], list[TensorMeta]]


class Interpreter(Protocol):
    """What a prim call does with operands that are not real tensors."""

    def apply(self, prim: Prim, operands: tuple[Any, ...], params: dict[str, Any]) -> Any:
        """The result of ``prim(*operands, **params)``."""
        ...

    def uniform(self, shape: tuple[Any, ...], device: torch.device, prim: Prim) -> Any:
        """Random float32 in [0, 1), as ``prim`` gives them; lets a graph draw one seed for many
        calls.
        """
        ...


class Traced:
    """Base of values that stand for a tensor; a prim call on one is handed to its interpreter."""

    __slots__ = ("interpreter",)
    interpreter: Any  # an Interpreter; a subclass may know which

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the tensor."""
        raise NotImplementedError

    def widened(self) -> Any | None:
        """For a float16 or bfloat16 value: the float32 value that it was rounded from, where that
        may be used instead.
        """
        return None

    def rounded(self, dtype: torch.dtype) -> Any:
        """This float32 value rounded to ``dtype`` because the result dtype is so, not because the
        program converts.
        """
        raise NotImplementedError


class _Ambient(threading.local):
    interpreter: Interpreter | None = None


_ambient = _Ambient()


@contextmanager
def reading_with(interpreter: Interpreter | None) -> Iterator[None]:
    """Prim calls without tensor operands go to ``interpreter`` inside the block (per thread)."""
    previous = _ambient.interpreter
    _ambient.interpreter = interpreter
    try:
        yield
    finally:
        _ambient.interpreter = previous


def current_interpreter() -> Interpreter | None:
    """The interpreter of the innermost ``reading_with``."""
    return _ambient.interpreter


class MetaReading:
    """The interpreter that runs meta rules: ``with reading_with(MetaReading()): prims.full(...)``
    is a ``TensorMeta``.
    """

    def apply(self, prim: Prim, operands: tuple[Any, ...], params: dict[str, Any]) -> TensorMeta:
        """Runs the meta rule."""
        return prim.infer(operands, params)

    def uniform(self, shape: tuple[Any, ...], device: torch.device, prim: Prim) -> TensorMeta:
        """Metadata of a float32 tensor."""
        return contiguous(shape, torch.float32, device)


AnyPrim = TypeVar("AnyPrim", bound="Prim")


@dataclass(eq=False, repr=False)
class Prim:
    """One primitive operation.

    Attributes: ``name``; ``group`` (see ``opset.GROUPS``); ``schema`` as text, ``operands`` and
    ``parameters`` as names (``variadic`` when the last operand name stands for any number);
    ``meaning``, one line with the formula; ``dtype_rule``; ``numerics``, accumulation dtype and
    allowed error; ``tags``; ``meta_rule`` and ``reference``, functions
    of the operands (metas or numbers, tensors) and keyword parameters.
    """

    schema: str
    _: KW_ONLY
    group: str
    meaning: str
    dtype_rule: str
    meta_rule: Callable[..., TensorMeta]
    reference: Callable[..., torch.Tensor]
    numerics: str = "exact"
    tags: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        """Parses ``name(a, b, *, p, q)`` or ``name(a, *rest, p)``."""
        self.name, self.operands, self.variadic, self.parameters = _parse_schema(self.schema)
        self._parameter_set = frozenset(self.parameters)
        # FX prints and runs a target through these.
        self.__name__ = self.name
        self.__module__ = "primops.prims"

    def __call__(self, *operands: Any, **params: Any) -> Any:
        """Runs the reading that the operands ask for. Raises PrimError when they do not fit the
        schema.
        """
        real = meta = False
        for operand in operands:
            if isinstance(operand, Traced):
                return operand.interpreter.apply(self, operands, params)
            # symbolic tracing, which unpickling a GraphModule does
            if isinstance(operand, fx.Proxy):
                return operand.tracer.create_proxy("call_function", self, operands, params)
            real = real or isinstance(operand, torch.Tensor)
            meta = meta or isinstance(operand, TensorMeta)
        if meta and real:
            raise PrimError(f"{self.name}: real tensors and metas do not mix")
        if meta:
            return self.infer(operands, params)
        if not real and _ambient.interpreter is not None:
            return _ambient.interpreter.apply(self, operands, params)
        metas = [TensorMeta.from_tensor(x) if isinstance(x, torch.Tensor) else x for x in operands]
        self.infer(tuple(metas), params)
        result = self.reference(*operands, **params)
        if isinstance(result, torch.Tensor) and not isinstance(self, ExternPrim):
            return result.contiguous()
        return result

    def infer(self, operands: tuple[Any, ...], params: dict[str, Any]) -> TensorMeta:
        """The result's metadata. Raises PrimError when the call does not fit the schema."""
        if params.keys() != self._parameter_set:
            raise PrimError(f"{self.schema}: got parameters {sorted(params)}")
        extra = len(operands) - len(self.operands)
        if extra < 0 or (extra and not self.variadic):
            raise PrimError(f"{self.schema}: got {len(operands)} operands")
        try:
            return self.meta_rule(*operands, **params)
        except PrimError as error:
            raise PrimError(f"{self.schema}: {error}") from None

    def __repr__(self) -> str:
        return f"prims.{self.name}"

    def __reduce__(self) -> tuple[Callable[[str], Prim], tuple[str]]:
        return _lookup, (self.name,)


class ExternPrim(Prim):
    """A prim that a graph spells by overloads of ATen operators (``operators``, full names): a
    library call.

    Called directly (by decompositions) it is its first operator's first overload. Its meta rule
    runs that operator on meta tensors, whose sizes may be symbolic.
    """

    def __init__(
        self, name: str, operators: Sequence[str], layout: Layout | None = None, **texts: str
    ) -> None:
        """``operators`` without a namespace are ATen's. ``layout`` corrects the meta kernel's
        strides. ``texts``: the fields ``group``, ``meaning`` and ``numerics``.
        """
        self.operators = tuple(op if "::" in op else f"aten::{op}" for op in operators)
        self._layout = layout
        super().__init__(
            f"{name}(*operands)", dtype_rule="the overload's", meta_rule=self._on_meta,
            reference=lambda *operands, **params: self.overload(*operands, **params),
            tags=frozenset({"extern"}), **texts,
        )  # fmt: skip

    @property
    def overload(self) -> Any:
        """The first overload of the first operator, the default one where there is one."""
        namespace, _, name = self.operators[0].partition("::")
        packet = getattr(getattr(torch.ops, namespace), name)
        return getattr(packet, min(packet.overloads(), key=lambda overload: overload != "default"))

    def infer(self, operands: tuple[Any, ...], params: dict[str, Any]) -> Any:
        """See ``Prim.infer``."""
        return self.meta_rule(*operands, **params)

    def _on_meta(self, *operands: Any, **params: Any) -> Any:
        device = next(x.device for x in operands if isinstance(x, TensorMeta))

        def empty(x: Any) -> Any:
            if not isinstance(x, TensorMeta):
                return x
            return torch.empty_strided(x.shape, x.strides, dtype=x.dtype, device="meta")

        result = self.overload(*map(empty, operands), **params)
        metas = [
            TensorMeta(tuple(r.shape), tuple(r.stride()), r.dtype, device)
            for r in (result if isinstance(result, tuple) else (result,))
        ]
        if self._layout is not None:
            metas = self._layout(operands, metas)
        return tuple(metas) if isinstance(result, tuple) else metas[0]


def _lookup(name: str) -> Prim:
    return _BY_NAME[name]


_BY_NAME: dict[str, Prim] = {}


def registered() -> dict[str, Prim]:
    """All prims by name, in the order of their definition."""
    return dict(_BY_NAME)


def group(name: str, *tags: str, **shared: Any) -> Callable[..., Prim]:
    """A function that defines prims of one group: their schema, meta rule, reference and meaning,
    and fields that differ from the ``shared`` ones.
    """

    def define_in_group(
        schema: str, meta_rule: Callable[..., Any], reference: Callable[..., Any], meaning: str,
        **own: Any,
    ) -> Prim:  # fmt: skip
        prim = Prim(
            schema, group=name, meaning=meaning, meta_rule=meta_rule, reference=reference,
            tags=frozenset(tags), **shared | own,
        )  # fmt: skip
        return add(prim)

    return define_in_group


def add(prim: AnyPrim) -> AnyPrim:
    """Adds a prim to the op set. Raises PrimError when the name is taken."""
    if prim.name in _BY_NAME:
        raise PrimError(f"there is a prim {prim.name} already")
    _BY_NAME[prim.name] = prim
    return prim


def _parse_schema(schema: str) -> tuple[str, tuple[str, ...], bool, tuple[str, ...]]:
    name, _, rest = schema.rstrip(")").partition("(")
    operands: list[str] = []
    parameters: list[str] = []
    variadic = keyword_only = False
    for item in filter(None, (part.strip() for part in rest.split(","))):
        if item == "*":
            keyword_only = True
        elif item.startswith("*"):
            variadic = keyword_only = True
        else:
            (parameters if keyword_only else operands).append(item)
    return name, tuple(operands), variadic, tuple(parameters)
