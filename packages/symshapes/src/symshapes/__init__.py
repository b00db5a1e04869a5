"""Symbolic shapes and fake tensors over SymPy."""

from typing import TYPE_CHECKING

from . import private_parts, torch_versions  # noqa: F401 (first: they refuse, or complete, the torch that is installed)

# isort: split
from .lazy import lazy_names

if TYPE_CHECKING:
    from .env import ShapeEnv
    from .errors import (
        DataDependentError,
        FakeTensorError,
        FrozenEnvError,
        GuardOnDataDependent,
        ParseError,
        SymbolicError,
        VersionError,
    )
    from .expr import (
        MATH_FUNCTIONS,
        Ceil,
        CeilDiv,
        Floor,
        FloorDiv,
        Mod,
        Round,
        ToFloat,
        TrueDiv,
        Trunc,
    )
    from .fake.convert import (
        fake_wrapper,
        is_leaf,
        stride_relations,
        symbolic_strides,
        with_history,
    )
    from .fake.distributed import holds_mask, is_distributed, shards
    from .fake.jagged import (
        as_jagged,
        as_traced,
        is_jagged,
        keep_ragged_size,
        ragged_size_of,
        ragged_source,
        set_ragged_size,
    )
    from .fake.mode import FakeTensorMode, mode_of
    from .fake.tensor import FakeTensor, is_fake
    from .fake.wrapper import (
        ON_INNER,
        Maker,
        WrapperFunction,
        call_wrapper,
        flatten,
        inner_tensor,
        inner_tensors,
        is_wrapper,
        is_wrapper_class,
        map_inner,
        rebuild,
        same_kind,
        versions_of,
    )
    from .graph_module import LazyGraphModule, PlainGraph
    from .guards import SizeGuard, current_user_line, python_text
    from .interrupts import Interrupted, allowed, check, deferred, is_of_handler, unlocked
    from .node import SymNode
    from .process import WhileAny
    from .quiet import quiet
    from .ranges import Interval, bound
    from .text.assumptions import add_assumptions, describe_environment, format_assumptions
    from .text.expressions import format_expression
    from .value_expr import expr_of, free_symbols
    from .values import hint_of, is_nested_int, is_symbolic, statically_known_true, sym_int

__version__ = "0.2.0"

__all__ = [
    "MATH_FUNCTIONS",
    "ON_INNER",
    "Ceil",
    "CeilDiv",
    "DataDependentError",
    "FakeTensor",
    "FakeTensorError",
    "FakeTensorMode",
    "Floor",
    "FloorDiv",
    "FrozenEnvError",
    "GuardOnDataDependent",
    "Interrupted",
    "Interval",
    "LazyGraphModule",
    "Maker",
    "Mod",
    "ParseError",
    "PlainGraph",
    "Round",
    "ShapeEnv",
    "SizeGuard",
    "SymNode",
    "SymbolicError",
    "ToFloat",
    "TrueDiv",
    "Trunc",
    "VersionError",
    "WhileAny",
    "WrapperFunction",
    "add_assumptions",
    "allowed",
    "as_jagged",
    "as_traced",
    "bound",
    "call_wrapper",
    "check",
    "current_user_line",
    "deferred",
    "describe_environment",
    "expr_of",
    "fake_wrapper",
    "flatten",
    "format_assumptions",
    "format_expression",
    "free_symbols",
    "hint_of",
    "holds_mask",
    "inner_tensor",
    "inner_tensors",
    "is_distributed",
    "is_fake",
    "is_jagged",
    "is_leaf",
    "is_nested_int",
    "is_of_handler",
    "is_symbolic",
    "is_wrapper",
    "is_wrapper_class",
    "keep_ragged_size",
    "map_inner",
    "mode_of",
    "python_text",
    "quiet",
    "ragged_size_of",
    "ragged_source",
    "rebuild",
    "same_kind",
    "set_ragged_size",
    "shards",
    "statically_known_true",
    "stride_relations",
    "sym_int",
    "symbolic_strides",
    "unlocked",
    "versions_of",
    "with_history",
]  # fmt: skip

__getattr__, __dir__ = lazy_names(__name__)
