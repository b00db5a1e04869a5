"""The closed, versioned list of prims. A change of meaning, schema or membership raises
``OPSET_VERSION``.
"""

from __future__ import annotations

import hashlib
from operator import attrgetter

from primops.prim import Prim, registered
from primops.prims import EXTERN_PRIMS  # importing the package defines all prims

OPSET_VERSION = 6

ORDER = (
    "elementwise unary", "elementwise binary", "comparison", "selection", "conversion", "shape",
    "indexing", "reduction", "scan", "creation", "random", "control flow",
)  # fmt: skip
OPSET: dict[str, Prim] = registered()
GROUPS: dict[str, tuple[str, ...]] = {
    group: tuple(name for name, prim in OPSET.items() if prim.group == group)
    for group in dict.fromkeys((*ORDER, *(prim.group for prim in EXTERN_PRIMS)))
}


def digest(prim: Prim) -> str:
    """A short hash of all that the op set promises about a prim."""
    texts = attrgetter("schema", "group", "meaning", "dtype_rule", "numerics")(prim)
    promised = "\n".join((*texts, *getattr(prim, "operators", ())))
    return hashlib.sha256(promised.encode()).hexdigest()[:12]
