"""At most 250 prim ops that mean everything, and the decompositions from ATen."""

from typing import TYPE_CHECKING

from primops.lazy import lazy_names

if TYPE_CHECKING:
    from primops import prims
    from primops.decompositions import DEFAULT
    from primops.derivatives import vjp
    from primops.errors import (
        ContractError,
        DecompositionError,
        DerivativeError,
        DuplicateRuleError,
        FrozenTableError,
        PrimError,
        PrimopsError,
        UnknownOpError,
    )
    from primops.evaluate import evaluate
    from primops.externs import EXTERN_OPS, prim_of
    from primops.meta import TensorMeta, contiguous_strides
    from primops.opset import OPSET, OPSET_VERSION
    from primops.passes import decompose
    from primops.prim import ExternPrim, MetaReading, Prim, reading_with
    from primops.registry import DecompositionTable
    from primops.report import Report, decomposition_report
    from primops.verify import check_prims

__version__ = "0.2.0"

__all__ = [
    "DEFAULT", "EXTERN_OPS", "OPSET", "OPSET_VERSION", "ContractError", "DecompositionError",
    "DecompositionTable", "DerivativeError", "DuplicateRuleError", "ExternPrim", "FrozenTableError",
    "MetaReading", "Prim", "PrimError", "PrimopsError", "Report", "TensorMeta", "UnknownOpError",
    "check_prims", "contiguous_strides", "decompose", "decomposition_report", "evaluate",
    "prim_of", "prims", "reading_with", "vjp",
]  # fmt: skip

__getattr__, __dir__ = lazy_names(__name__)
