"""Readable names of kernels."""

from __future__ import annotations

import re
from collections.abc import Iterable


def title_of(nodes: Iterable[str], most: int = 4) -> str:
    """A readable name: the operations that these graph nodes are, without numbers, such as
    ``mul_erf_add_sum``.
    """
    names = dict.fromkeys(re.sub(r"(_default|_tensor|_scalar)?(_\d+)?$", "", n) for n in nodes)
    plain = [name for name in names if name not in _MOVEMENTS] or ["copy"]
    more = f"_and_{len(plain) - most}_more" if len(plain) > most else ""
    return "_".join(plain[:most]) + more


_MOVEMENTS = {
    "broadcast_in_dim", "reshape", "permute", "view", "expand", "squeeze", "unsqueeze", "slice",
    "convert", "full", "getitem", "output",
}  # fmt: skip
