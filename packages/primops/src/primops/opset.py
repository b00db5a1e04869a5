"""The closed, versioned list of prims. A change of meaning, schema or membership raises ``OPSET_VERSION``."""

from __future__ import annotations

from primops import prims
from primops.prim import Prim

OPSET_VERSION = 1

GROUPS: dict[str, str] = {
    "elementwise unary": (
        "neg abs sign floor ceil trunc round exp expm1 log log2 log1p sqrt rsqrt sin cos tan asin acos atan sinh cosh tanh "
        "erf lgamma bitwise_not"
    ),
    "elementwise binary": (
        "add sub mul div pow atan2 maximum minimum fmod remainder floor_div bitwise_and bitwise_or bitwise_xor "
        "shift_left shift_right"
    ),
    "comparison": "eq ne lt le gt ge",
    "selection": "where",
    "conversion": "convert bitcast",
    "shape": "broadcast_in_dim reshape permute slice flip pad cat",
    "indexing": "index index_put gather scatter scatter_add",
    "reduction": "sum prod amax amin any all argmax argmin",
    "scan": "cumsum cumprod",
    "creation": "full iota",
    "random": "random_seed uniform",
}

OPSET: dict[str, Prim] = {name: getattr(prims, name) for names in GROUPS.values() for name in names.split()}
