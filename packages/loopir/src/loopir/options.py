"""What a caller may choose about lowering and scheduling."""

from __future__ import annotations

import os
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Options:
    """``fuse``: merge loop nodes into kernels. ``inline``: compute cheap values again instead of
    storing them. ``split_reductions``: two stages for large reductions to few outputs. ``reuse``:
    dead buffers become memory of later ones. ``threads``: parallel workers to plan for (None: as
    many as torch uses). ``patterns``: rewrite the functional graph first; ``layouts``: with
    channels-last convolutions; ``templates``: products and convolutions, with the loops around
    them, may be kernels of a code generator instead of calls. ``blocks``: compile equal parts of a
    graph once. ``reorder``: loops are ordered by strides. ``vectorise``: kernels name a loop whose
    points are computed together. ``inference``: no backward pass follows, so that layouts and
    attention may be chosen for the forward pass alone. ``freeze``: inputs with ``meta["static"]``
    are constants (implies inference). ``check``: run the contract checkers (default: when
    STRATA_VERIFY is 1). ``deadline``: seconds that a code generator may take for a kernel's text,
    and for a build (None: any time). ``join_launches``: call consecutive kernels by one call where
    the code generator can link them.
    """

    fuse: bool = True
    inline: bool = True
    split_reductions: bool = True
    reuse: bool = True
    threads: int | None = None
    patterns: bool = True
    layouts: bool = True
    templates: bool = True
    reorder: bool = True
    vectorise: bool = True
    blocks: bool = True
    inference: bool = False
    freeze: bool = False
    deadline: float | None = None
    join_launches: bool = True
    check: bool = field(default_factory=lambda: os.environ.get("STRATA_VERIFY") == "1")
