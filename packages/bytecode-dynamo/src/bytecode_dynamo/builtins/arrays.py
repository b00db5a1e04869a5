"""NumPy: functions of its numbers are called while capturing, those of arrays are calls in the
graph.
"""

from __future__ import annotations

import functools
import warnings
from typing import Any

import torch

from bytecode_dynamo.errors import GraphBreak, NotConstant
from bytecode_dynamo.function_table import CONSTRUCTORS, FUNCTIONS, evaluates_call
from bytecode_dynamo.rule_table import RuleFor
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.protocol import call_torch, constants, new_list, new_value, raising
from bytecode_dynamo.state.tracker import VariableTracker
from bytecode_dynamo.variables.array import ArrayVariable, as_array, call_array, numpy, torch_numpy
from bytecode_dynamo.variables.base import realize
from bytecode_dynamo.variables.callable import CallableVariable
from bytecode_dynamo.variables.constant import (
    ConstantVariable,
    SliceVariable,
    constant_by_text,
    is_constant_value,
)
from bytecode_dynamo.variables.sequence import SequenceVariable
from bytecode_dynamo.variables.tensor import TENSOR_METHODS, TensorVariable
from bytecode_dynamo.variables.wrap import by_identity, tracker_for

from .torch_functions import make_tensor

PURE = (
    "prod",
    "sum",
    "mean",
    "max",
    "min",
    "amax",
    "amin",
    "clip",
    "round",
    "around",
    "isclose",
    "allclose",
    "interp",
)


def _in_graph(home: str, name: str) -> Any:
    """The function of ``torch._numpy`` in place of NumPy's."""
    found = functools.reduce(
        lambda part, step: getattr(part, step, None), home.split(".")[1:], torch_numpy
    )
    return getattr(found, name, None) if found is not None else None


def _has_array(ctx: Context, value: VariableTracker) -> bool:
    if isinstance(value, (SequenceVariable, SliceVariable)):
        return isinstance(value, SequenceVariable) and any(
            _has_array(ctx, realize(ctx, item)) for item in value.unpack(ctx)
        )
    return isinstance(value, ArrayVariable)


def _has_arrays_only(ctx: Context, value: VariableTracker) -> bool:
    return isinstance(value, SequenceVariable) and all(
        isinstance(realize(ctx, item), ArrayVariable) for item in value.unpack(ctx)
    )


def _as_arrays(ctx: Context, value: VariableTracker) -> VariableTracker:
    """A list with arrays in place of its tensors, which NumPy asks for them."""
    if not isinstance(value, SequenceVariable):
        return value
    items = [realize(ctx, item) for item in value.unpack(ctx)]
    if not any(isinstance(item, TensorVariable) for item in items):
        return value
    return new_list(
        ctx, [to_numpy(ctx, item) if isinstance(item, TensorVariable) else item for item in items]
    )


def _array_rule(home: str, name: str, original: Any, fold: Any = None) -> Any:
    """The rule of a function of arrays; ``fold`` is the one for numbers."""

    def rule(ctx: Context, *args: VariableTracker, **kwargs: VariableTracker) -> VariableTracker:
        values = (*args, *kwargs.values())
        if fold is not None and not any(_has_array(ctx, value) for value in values):
            return fold(ctx, *args, **kwargs)
        function = _in_graph(home, name)
        if function is None:
            raise GraphBreak("BD005", f"call of {home}.{name}")
        if name in ("asarray", "array") and len(args) == len(values) == 1:
            if isinstance(args[0], TensorVariable):
                array = args[0].call_method(ctx, "numpy", [], {})
                return array if name == "asarray" else array.call_method(ctx, "copy", [], {})
            args = (_as_arrays(ctx, args[0]),)
            if _has_arrays_only(ctx, args[0]):
                function = _in_graph(home, "stack")
        if name in ("asarray", "array") and args and _has_scalar(ctx, args[0]):
            args, kwargs = _with_dtype(ctx, original, args, kwargs)
        if name.endswith("_like") and args and isinstance(args[0], TensorVariable):
            args = to_numpy(ctx, args[0]), *args[1:]
        return call_array(ctx, function, args, kwargs, original)

    return rule


def to_numpy(
    ctx: Context, tensor: TensorVariable, force: VariableTracker | None = None
) -> VariableTracker:
    """``tensor.numpy()``: the same memory; writes to the array change no tensor version."""
    fake = tensor.fake
    if (
        fake.requires_grad or fake.device.type != "cpu" or fake.is_conj() or fake.is_neg()
    ) or force is not None:
        raise GraphBreak(
            "BD005",
            f"{tensor.describe()}.numpy(), which needs a plain tensor on the CPU without gradient",
            "call detach().cpu() before numpy(), or use the torch function of the same meaning",
        )
    if fake.is_inference() and not torch.is_inference_mode_enabled():
        raise GraphBreak(
            "BD005",
            f"{tensor.describe()}.numpy(): NumPy may write to it, a graph may not",
            "call numpy() outside the compiled region, or on a clone()",
        )
    return as_array(tensor.get_attr(ctx, "data"))


def from_numpy(ctx: Context, array: VariableTracker) -> VariableTracker:
    """``torch.from_numpy(array)``: the same memory, with its own version."""
    if not isinstance(array, ArrayVariable):
        raise GraphBreak(
            "BD005",
            f"torch.from_numpy of {array.describe()}",
            "make the tensor outside the compiled region and pass it as an argument",
        )
    made = array.tensor.get_attr(ctx, "data")
    if isinstance(made, TensorVariable):
        # NumPy's empty arrays have strides of zero
        if 0 in made.fake.shape and any(made.fake.stride()):
            shape, steps = (
                new_value(ctx, tuple(made.fake.shape)),
                new_value(ctx, (0,) * made.fake.dim()),
            )
            return made.call_method(ctx, "as_strided", [shape, steps], {})
        ctx.from_arrays[id(made.fake)] = made
    return made


def _converting(function: Any, otherwise: Any) -> Any:
    def rule(
        ctx: Context, data: VariableTracker, *args: VariableTracker, **kwargs: VariableTracker
    ) -> VariableTracker:
        if not isinstance(data, ArrayVariable):
            if not args and "dtype" not in kwargs and _has_scalar(ctx, data):
                data, kwargs = _typed(ctx, function, data, kwargs)
            return otherwise(ctx, data, *args, **kwargs)
        tensor = from_numpy(ctx, data)
        if args or set(kwargs) - {"dtype", "device"}:
            raise GraphBreak(
                "BD005", f"torch.{function.__name__} of {data.describe()} with these arguments"
            )
        tensor = tensor.call_method(ctx, "to", [], kwargs) if kwargs else tensor
        return tensor.call_method(ctx, "clone", [], {}) if function is torch.tensor else tensor

    return rule


def _has_scalar(ctx: Context, data: VariableTracker) -> bool:
    if isinstance(data, SequenceVariable):
        return any(_has_scalar(ctx, realize(ctx, item)) for item in data.unpack(ctx))
    return isinstance(data, ConstantVariable) and isinstance(data.value, numpy.generic)


def _typed(
    ctx: Context, function: Any, data: VariableTracker, options: dict[str, VariableTracker]
) -> Any:
    """Plain numbers in place of NumPy's, and the dtype that eager infers: a graph's text has no
    float64 but float.
    """
    examples, numbers = _split(ctx, data)
    try:
        with warnings.catch_warnings(action="ignore"):
            dtype = function(examples).dtype
    except Exception as error:
        raise GraphBreak(
            "BD005", f"torch.{function.__name__} of NumPy's numbers: {error}"
        ) from None
    return numbers, {**options, "dtype": ConstantVariable(dtype)}


def _with_dtype(ctx: Context, function: Any, args: Any, kwargs: Any) -> Any:
    """Plain numbers and the array's dtype in place of NumPy's numbers."""
    try:
        given, named = constants(ctx, args, kwargs)
        made = function(*given, **named)
    except (NotConstant, TypeError, ValueError) as error:
        raise GraphBreak("BD005", f"numpy.{function.__name__} with {error}") from None
    return (new_value(ctx, made.tolist()),), {"dtype": ConstantVariable(made.dtype)}


def _split(ctx: Context, data: VariableTracker) -> tuple[Any, VariableTracker]:
    """Nested lists twice: as eager reads them, and with plain numbers."""
    if isinstance(data, SequenceVariable):
        parts = [_split(ctx, realize(ctx, item)) for item in data.unpack(ctx)]
        return [example for example, _ in parts], new_list(ctx, [number for _, number in parts])
    if isinstance(data, ConstantVariable):
        is_scalar = isinstance(data.value, numpy.generic)
        return data.value, ConstantVariable(data.value.item()) if is_scalar else data
    if data.python_type() in (int, float, bool):
        return data.python_type()(1), data
    raise GraphBreak("BD005", f"{data.describe()} among NumPy's numbers")


def _folded(
    ctx: Context, function: Any, *args: VariableTracker, **kwargs: VariableTracker
) -> VariableTracker:
    try:
        values, named = constants(ctx, args, kwargs)
    except NotConstant as error:
        raise GraphBreak("BD005", f"numpy.{function.__name__} of {error}") from None
    with raising(ctx, Exception):
        result = function(*values, **named)
    if not is_constant_value(result):
        raise GraphBreak("BD005", f"numpy.{function.__name__} gives an array")
    return ConstantVariable(result)


def _register() -> None:
    tracker_for(numpy.generic)(constant_by_text)
    CONSTRUCTORS[numpy.dtype] = lambda ctx, *args: ConstantVariable(
        numpy.dtype(*(arg.as_constant(ctx) for arg in args))
    )
    tracker_for(numpy.ufunc, type(numpy.prod))(by_identity(CallableVariable))
    for value in vars(numpy).values():  # its lazy names, all of modules, stay unloaded
        if isinstance(value, type) and issubclass(value, numpy.generic):
            CONSTRUCTORS[value] = RuleFor(_folded, value)
    for home, module in (
        ("numpy", numpy),
        ("numpy.linalg", numpy.linalg),
        ("numpy.fft", numpy.fft),
    ):
        for name, value in vars(module).items():
            pure = isinstance(value, numpy.ufunc) or (home == "numpy" and name in PURE)
            if (
                (pure or callable(_in_graph(home, name)))
                and not isinstance(value, type)
                and FUNCTIONS.find(value) is None
            ):
                evaluates_call(value)(
                    _array_rule(home, name, value, RuleFor(_folded, value) if pure else None)
                )
    TENSOR_METHODS["numpy"] = to_numpy
    evaluates_call(torch.from_numpy)(from_numpy)
    as_tensor, as_array = (
        _converting(function, RuleFor(_recorded, function))
        for function in (torch.as_tensor, torch.asarray)
    )
    evaluates_call(torch.as_tensor)(as_tensor)
    evaluates_call(torch.asarray)(lambda ctx, obj, **options: as_array(ctx, obj, **options))
    evaluates_call(torch.tensor)(_converting(torch.tensor, make_tensor))


def _recorded(ctx: Context, function: Any, *args: Any, **kwargs: Any) -> VariableTracker:
    return call_torch(ctx, function, args, kwargs)


if numpy is not None:
    _register()
else:
    evaluates_call(torch.tensor)(make_tensor)
