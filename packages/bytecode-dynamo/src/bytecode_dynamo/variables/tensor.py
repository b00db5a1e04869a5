"""Tensors: a graph node and its fake value."""

from __future__ import annotations

import inspect
import math
import operator
import types
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from symshapes import FakeTensor, is_wrapper
from torch.fx import Node

from bytecode_dynamo.errors import GraphBreak
from bytecode_dynamo.guards.records import ABSENT, GuardKind
from bytecode_dynamo.guards.source import AttrSource
from bytecode_dynamo.reconstruction import rebuilding
from bytecode_dynamo.reconstruction.value_builder import ValueBuilder
from bytecode_dynamo.rule_table import RuleTable
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.effects import DELETED, MISSING, Identity
from bytecode_dynamo.state.protocol import (
    call_special,
    call_torch,
    class_attribute,
    decide,
    dispatch_override,
    new_list,
    new_value,
    raise_error,
    raise_no_attribute,
    wrap_value,
)
from bytecode_dynamo.state.requirements import (
    example_of,
    pinned_alike,
    require_class_attribute,
    tensor_identity,
)
from bytecode_dynamo.state.tracker import VariableTracker

from . import tensor_setters, wrapper_tensor
from .attribute import bind_at, find_in_class
from .base import Args, BoundRuleVariable, Kwargs, Variable
from .constant import NONE, ConstantVariable
from .indexing import at_positions
from .input_numbers import number_of_input
from .input_state import TENSOR_TYPES, TORCHS, state_of_input, state_of_inputs, was_leaf
from .sequence import new_tuple
from .userobject import OpaqueVariable
from .wording import accepted

# fakes lack them
ASKS_FOR_LAZY_BITS = frozenset(["is_conj", "is_neg", "resolve_conj", "resolve_neg"])
# Methods that expose values or storage outside of the graph, with the break's id.
LEAVING = {
    "numpy": "BD005", "__array__": "BD005", "__dlpack__": "BD005", "data_ptr": "BD004",
    "storage": "BD004",
    "untyped_storage": "BD004",
    "register_post_accumulate_grad_hook": "BD018", "share_memory_": "BD018", "pin_memory": "BD018",
    "set_": "BD018",
    "__reduce_ex__": "BD018", "__deepcopy__": "BD018", "apply_": "BD004", "map_": "BD004",
}  # fmt: skip

_INDICES = (torch.int64, torch.int32)
_COMPARISONS = (operator.lt, operator.le, operator.gt, operator.ge)

# Methods with their own rule.
TENSOR_METHODS: dict[str, Callable[..., VariableTracker]] = {}
# Tensor-valued attributes, with the rules that compute them.
TENSOR_ATTRIBUTES: RuleTable[str, Callable[[Context, Any], VariableTracker]] = RuleTable()
PLAIN_ATTRIBUTES = frozenset(
    """
    shape dtype device layout ndim requires_grad is_cuda is_cpu is_mps is_meta is_sparse
    is_sparse_csr is_quantized is_leaf is_nested itemsize nbytes names is_xpu is_mkldnn is_ipu
    is_xla is_vulkan is_complex output_nr _version is_inference retains_grad
    """.split()
)


@dataclass(frozen=True, slots=True, eq=False)
class TensorVariable(Variable):
    """A tensor inside the graph."""

    is_tensor: ClassVar[bool] = True
    node: Node
    fake: FakeTensor
    cls: type = torch.Tensor

    def python_type(self) -> type:
        return self.cls

    @property
    def torch_class(self) -> type:
        """The tensor's class, or the torch class that it extends."""
        return next(cls for cls in self.cls.__mro__ if cls in TENSOR_TYPES)

    @property
    def overrides(self) -> bool:
        """Whether its class has a ``__torch_function__``."""
        return (
            self.cls not in TENSOR_TYPES
            and self.cls.__torch_function__ is not torch._C._disabled_torch_function_impl
        )  # pyright: ignore

    def describe(self) -> str:
        return f"tensor {self.source.shown if self.source is not None else self.node.name}"

    def as_proxy(self, ctx: Context) -> Any:
        return self.node

    def as_fake(self, ctx: Context) -> Any:
        return self.fake

    def identity(self) -> object:
        return self.fake

    def hash_key(self, ctx: Context) -> Hashable:
        return ("tensor", id(self.fake))

    def truth(self, ctx: Context) -> bool:
        number = number_of_input(ctx, self)
        if number is not None:
            return number.truth(ctx)
        known = _comparison_of_random(self.node) if self.fake.numel() == 1 else None
        return decide(ctx, lambda: bool(self.fake), self.describe()) if known is None else known

    def length(self, ctx: Context) -> VariableTracker:
        found = require_class_attribute(ctx, self.cls, "__len__")
        if found is not TORCHS[self.torch_class]["__len__"]:
            return accepted(
                "__len__", self._replaced_attribute(ctx, "__len__", found).call(ctx, [], {})
            )
        if not self.fake.dim():
            return raise_error(ctx, TypeError, "len() of a 0-d tensor")
        return new_value(ctx, self.fake.shape[0])

    def iterate(self, ctx: Context) -> VariableTracker:
        if not self.fake.dim():
            return raise_error(ctx, TypeError, "iteration over a 0-d tensor")
        return self.call_method(ctx, "unbind", [ConstantVariable(0)], {}).iterate(ctx)

    def contains(self, ctx: Context, item: VariableTracker) -> bool:
        raise GraphBreak(
            "BD001",
            f"whether {self.describe()} contains a value",
            "compare with (tensor == value).any(), and use it in torch.where",
        )

    def get_item(self, ctx: Context, key: VariableTracker) -> VariableTracker:
        base, rest = at_positions(ctx, self, key)
        if rest is None:
            return base
        return call_torch(ctx, operator.getitem, [base, rest])

    def set_item(self, ctx: Context, key: VariableTracker, value: VariableTracker) -> None:
        base, rest = at_positions(ctx, self, key)
        call_torch(ctx, operator.setitem, [base, rest or ConstantVariable(...), value])

    def get_attr(self, ctx: Context, name: str) -> VariableTracker:
        if self.cls not in TENSOR_TYPES and (is_own(self.cls, name) or self._holds(ctx, name)):
            return self._own_attribute(ctx, name)
        found = require_class_attribute(ctx, self.cls, name)
        if found is not TORCHS[self.torch_class].get(name, ABSENT):
            return self._replaced_attribute(ctx, name, found)
        return self.get_by_torch(ctx, name)

    def get_by_torch(self, ctx: Context, name: str) -> VariableTracker:
        """The attribute that torch defines, whatever the tensor's own class has got."""
        found = TORCHS[self.torch_class].get(name, ABSENT)
        seen = self.overrides or ctx.modes.function_modes(ctx)
        if seen and hasattr(torch.Tensor, name) and not callable(getattr(torch.Tensor, name)):
            handled = dispatch_override(ctx, "get_attr", name, [self], {})
            if handled is not None:
                return handled
        if name == "_version" and ctx.examples and not _is_made_here(ctx, self.fake):
            raise GraphBreak(
                "BD014", f"{self.describe()}._version: how often inputs were written is not known"
            )
        if name in PLAIN_ATTRIBUTES and not callable(getattr(torch.Tensor, name, callable)):
            return new_value(ctx, _plain_attribute(ctx, self, name))
        rule = TENSOR_ATTRIBUTES.get(name)
        if rule is not None:
            return rule(ctx, self)
        methods = (types.MethodDescriptorType, types.FunctionType, types.WrapperDescriptorType)
        if isinstance(found, methods) or isinstance(
            getattr(self.cls, name, None), types.MethodDescriptorType
        ):
            return BoundRuleVariable(self, name)
        if found is ABSENT:
            if require_class_attribute(ctx, self.cls, "__getattr__") is not ABSENT:
                raise GraphBreak(
                    "BD014",
                    f"attribute {name!r} of {self.describe()}: the class has got a __getattr__",
                )
            return self._custom_attribute(ctx, name)
        raise GraphBreak("BD014", f"attribute {name!r} of {self.describe()}")

    def _replaced_attribute(self, ctx: Context, name: str, found: Any) -> VariableTracker:
        """The attribute that the program set on the class in place of, or beside, torch's."""
        if found is ABSENT or isinstance(found, types.GetSetDescriptorType):
            raise GraphBreak(
                "BD014",
                f"attribute {name!r} of {self.describe()}: the program changed it on the class",
            )
        return bind_at(ctx, self, self.cls, find_in_class(self.cls, name)[0], name)

    def _own_attribute(self, ctx: Context, name: str) -> VariableTracker:
        """An attribute defined by a subclass; instance attributes take precedence over methods."""
        held = ctx.effects.read((self.key(ctx), name)) is not MISSING or self._holds(ctx, name)
        if held:
            return self._custom_attribute(ctx, name)
        slot = wrapper_tensor.slot(ctx, self, name)
        return class_attribute(ctx, self, self.cls, name) if slot is None else slot

    def _holds(self, ctx: Context, name: str) -> bool:
        """Whether the instance has an attribute that takes precedence over the class's."""
        value = self.fake if is_wrapper(self.fake) else example_of(ctx, self)
        if value is None or name not in value.__dict__:
            return False
        return not hasattr(inspect.getattr_static(self.cls, name, None), "__set__")

    def key(self, ctx: Context) -> Identity:
        """The identity that holds attributes set by the program."""
        return tensor_identity(ctx, self)

    def _custom_attribute(self, ctx: Context, name: str) -> VariableTracker:
        written = ctx.effects.read((self.key(ctx), name))
        if written is not MISSING and written is not DELETED:
            return written
        value = example_of(ctx, self) if written is MISSING else None
        if value is None and written is MISSING and is_wrapper(self.fake):
            return wrapper_tensor.attribute(ctx, self, name)
        if value is None:
            return raise_no_attribute(ctx, self.cls, name)
        assert self.source is not None
        if name not in value.__dict__:
            ctx.guards.require(self.source, GuardKind.NO_ATTR, name)
            return raise_no_attribute(ctx, self.cls, name)
        return wrap_value(ctx, value.__dict__[name], AttrSource(self.source, name))

    def set_attr(self, ctx: Context, name: str, value: VariableTracker) -> None:
        tensor_setters.set_attribute(ctx, self, name, value)

    def del_attr(self, ctx: Context, name: str) -> None:
        if hasattr(torch.Tensor, name) or tensor_setters.is_replaced(
            ctx, self, "__delattr__", name
        ):
            raise GraphBreak("BD020", f"deletion of attribute {name!r} of {self.describe()}")
        self._custom_attribute(ctx, name)
        ctx.effects.write((self.key(ctx), name), DELETED)

    def call_method(self, ctx: Context, name: str, args: Args, kwargs: Kwargs) -> VariableTracker:
        if self.cls not in TENSOR_TYPES and (is_own(self.cls, name) or self._holds(ctx, name)):
            return self._own_attribute(ctx, name).call(ctx, args, kwargs)
        found = require_class_attribute(ctx, self.cls, name)
        if found is not TORCHS[self.torch_class].get(name, ABSENT):
            return self._replaced_attribute(ctx, name, found).call(ctx, args, kwargs)
        rule = TENSOR_METHODS.get(name)
        if rule is not None:
            return rule(ctx, self, *args, **kwargs)
        if (
            name == "requires_grad_"
            and example_of(ctx, self) is not None
            and not _keeps_requires_grad(ctx, self, args)
        ):
            ctx.require_once(f"{self.describe()}.requires_grad_()")
            ctx.graph.change_metadata(self.fake)
        if name in ASKS_FOR_LAZY_BITS and any(
            v.is_conj() or v.is_neg() for v in ctx.examples.values()
        ):
            raise GraphBreak(
                "BD014", f"{self.describe()}.{name}(): an input is conjugated or negated lazily"
            )
        if name in ("storage_offset", "is_inference", "is_shared", "is_pinned") or (
            name == "_is_view" and example_of(ctx, self) is not None
        ):
            return state_of_inputs(ctx, self, name)
        if name in LEAVING:
            raise GraphBreak(LEAVING[name], f"{self.describe()}.{name}()")
        if name == "type" and args and issubclass(args[0].python_type(), type):
            wanted = args[0].as_constant(ctx)
            # as FX can write it
            args = [ConstantVariable(f"{wanted.__module__}.{wanted.__name__}"), *args[1:]]
        if name in ("__getitem__", "__setitem__", "__len__", "__iter__"):
            return call_special(ctx, self, name, args)
        return call_torch(ctx, name, [self, *args], kwargs)

    def as_index(self, ctx: Context) -> Any:
        number = number_of_input(ctx, self) if self.fake.dtype in _INDICES else None
        if number is not None:
            return number.as_index(ctx)
        return decide(ctx, lambda: self.fake.__index__(), f"{self.describe()} as an index")

    def reconstruct(self, gen: ValueBuilder) -> None:
        origin = gen.ctx.from_arrays.get(id(self.fake)) or gen.ctx.from_arrays.get(
            id(self.fake._base)
        )
        if origin is not None and not self.fake.requires_grad:
            push = partial(self._push_of_array, gen, None if origin.fake is self.fake else origin)
            gen.build_once(tensor_identity(gen.ctx, self), push)
            return
        plain = self.cls in TENSOR_TYPES or is_wrapper(self.fake)
        if not plain and self.fake.requires_grad and self.fake.is_leaf:
            raise GraphBreak(
                "BD015",
                f"{self.describe()}, a {self.cls.__name__} without history that requires gradients",
            )
        key = gen.ctx.identities.get(id(self.fake)) if plain else tensor_identity(gen.ctx, self)
        if key is None or (plain and not gen.ctx.effects.attributes(key)):
            gen.load_graph_value(self.node)
        else:
            gen.build_once(key, partial(self._push, gen, plain))

    def _push(self, gen: ValueBuilder, plain: bool) -> None:
        if plain:
            gen.load_graph_value(self.node)
            return
        gen.call_const(rebuilding.of_class, self.node, self.cls)

    def _push_of_array(self, gen: ValueBuilder, origin: TensorVariable | None) -> None:
        """Push a ``torch.from_numpy`` tensor, or a view of such an ``origin``, in a new storage."""
        if origin is not None:
            gen.call_const(rebuilding.view_from_array, origin, origin.node, self.node)
        else:
            version = None if self.fake.is_inference() else self.fake._version
            gen.call_const(rebuilding.from_array, self.node, version)


def _is_made_here(ctx: Context, fake: torch.Tensor) -> bool:
    """Whether a tensor shares no input's memory and its version counts every write."""
    given = [val for node in ctx.graph.inputs if isinstance(val := node.meta["val"], torch.Tensor)]
    if fake.is_inference() or any(map(is_wrapper, [fake, *given])):
        return False
    return fake.untyped_storage()._cdata not in {val.untyped_storage()._cdata for val in given}


def to_list(ctx: Context, x: TensorVariable) -> VariableTracker:
    """``x.tolist()``: nested lists of data-dependent numbers."""
    number = number_of_input(ctx, x) if not x.fake.dim() else None
    if number is not None:
        return number
    _require_numbers_of_data(ctx, x, "tolist")
    if not x.fake.dim():
        return x.call_method(ctx, "item", [], {})
    rows = x.call_method(ctx, "unbind", [ConstantVariable(0)], {}).unpack(ctx)
    return new_list(ctx, [to_list(ctx, row) for row in rows])  # pyright: ignore[reportArgumentType]


def to_number(ctx: Context, x: TensorVariable, *args: VariableTracker) -> VariableTracker:
    """``x.item()``: a number of an input, or one that depends on data."""
    if x.fake.known_number is None and not args:
        number = number_of_input(ctx, x)
        if number is not None:
            return number
        _require_numbers_of_data(ctx, x, "item")
    return call_torch(ctx, "item", [x, *args])


def _require_numbers_of_data(ctx: Context, x: TensorVariable, method: str) -> None:
    """Break the graph unless numbers that depend on data may be in it."""
    if not ctx.config.capture_scalar_outputs:
        raise GraphBreak(
            "BD004",
            f"{x.describe()}.{method}()",
            "keep the number in a tensor, or set bytecode_dynamo.config.capture_scalar_outputs",
        )


TENSOR_METHODS["tolist"] = to_list
TENSOR_METHODS["item"] = to_number


def _comparison_of_random(node: Node) -> bool | None:
    """The result of comparing a random number in [0, 1) with a constant that decides it."""
    compare: Any = node.target
    number, bound, *_ = (*node.args, None, None)
    if (
        compare not in _COMPARISONS
        or type(bound) not in (int, float)
        or not isinstance(number, Node)
    ):
        return None
    # another holder may write to it
    if number.target is not torch.rand or "out" in number.kwargs or len(number.users) > 1:
        return None
    least, most = compare(0.0, bound), compare(math.nextafter(1.0, 0.0), bound)
    return least if least == most else None


def _keeps_requires_grad(ctx: Context, x: TensorVariable, args: Args) -> bool:
    return x.fake.requires_grad == (args[0].truth(ctx) if args else True)


@dataclass(frozen=True, slots=True, eq=False)
class GradientFunctionVariable(OpaqueVariable):
    """``x.grad_fn``, of which only the existence is known while capturing."""

    base: TensorVariable

    def truth(self, ctx: Context) -> bool:
        return True

    def reconstruct(self, gen: ValueBuilder) -> None:
        gen(self.base)
        gen.emitter.load_attr("grad_fn")


@TENSOR_ATTRIBUTES.register("T")
def transposed(ctx: Context, x: TensorVariable) -> VariableTracker:
    dims = [ConstantVariable(dim) for dim in reversed(range(x.fake.dim()))]
    return x.call_method(ctx, "permute", [new_tuple(dims)], {})


TENSOR_ATTRIBUTES.register("mT")(
    lambda ctx, x: x.call_method(ctx, "transpose", [ConstantVariable(-2), ConstantVariable(-1)], {})
)
TENSOR_ATTRIBUTES.register("mH")(lambda ctx, x: x.call_method(ctx, "adjoint", [], {}))


@TENSOR_ATTRIBUTES.register("H")
def adjoint(ctx: Context, x: TensorVariable) -> VariableTracker:
    if x.fake.dim() not in (0, 2):
        raise GraphBreak(
            "BD014", f"{x.describe()}.H needs a matrix", "use mH for batches of matrices"
        )
    if x.fake.dim():
        return x.call_method(ctx, "adjoint", [], {})
    return x.call_method(ctx, "conj", [], {})


TENSOR_ATTRIBUTES.register("real")(lambda ctx, x: call_torch(ctx, torch.real, [x]))
TENSOR_ATTRIBUTES.register("imag")(lambda ctx, x: call_torch(ctx, torch.imag, [x]))
TENSOR_ATTRIBUTES.register("data")(
    lambda ctx, x: call_torch(ctx, getattr, [x, ConstantVariable("data")])
)


@TENSOR_ATTRIBUTES.register("grad")
def gradient(ctx: Context, x: TensorVariable) -> VariableTracker:
    written = ctx.effects.read((x.key(ctx), "grad"))
    if written is not MISSING:
        return written
    value = example_of(ctx, x)
    if value is None:
        if x.fake.is_leaf:
            return NONE
        raise GraphBreak(
            "BD014",
            f".grad of {x.describe()}, which is not a leaf",
            "call retain_grad() outside the compiled region, or use torch.autograd.grad",
        )
    assert x.source is not None
    return wrap_value(ctx, value.grad, AttrSource(x.source, "grad"))


@TENSOR_ATTRIBUTES.register("grad_fn")
def gradient_function(ctx: Context, x: TensorVariable) -> VariableTracker:
    function, value, leaf = x.fake.grad_fn, example_of(ctx, x), was_leaf(ctx, x)
    if function is None and value is not None and not leaf:
        function = value.grad_fn
    if function is None:
        return NONE
    return GradientFunctionVariable(type(function), f".grad_fn of {x.describe()}", x)


def _plain_attribute(ctx: Context, x: TensorVariable, name: str) -> Any:
    held = getattr(x.fake, name) if name != "nbytes" else x.fake.numel() * x.fake.itemsize
    if name == "is_leaf":
        return was_leaf(ctx, x) and held
    return held or state_of_input(ctx, x, name) if name in ("retains_grad", "output_nr") else held


def require_not_aliased(ctx: Context, left: VariableTracker, right: VariableTracker) -> None:
    """Guard that two existing objects are distinct."""
    kinds = (Identity, types.FunctionType)
    if isinstance(left, TensorVariable) or isinstance(left.identity(), kinds):
        assert left.source is not None and right.source is not None
        if not pinned_alike(left, right.source) and not pinned_alike(right, left.source):
            ctx.guards.require(left.source, GuardKind.NOT_ALIASED, right.source)


def is_own(cls: type, name: str) -> bool:
    """Whether a tensor subclass adds an attribute or overrides torch's."""
    own = cls.__mro__[: cls.__mro__.index(torch.Tensor)]
    return name != "__torch_function__" and any(
        name in base.__dict__ for base in own if base not in TENSOR_TYPES
    )
