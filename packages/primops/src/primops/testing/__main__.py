"""``python -m primops.testing --decompositions module:attribute``: the kit's table for a table of
decompositions. ``python -m primops.testing derivatives [PRIM...]``: that of the derivatives.
``python -m primops.testing corpus``: that of the stored graphs.
"""

import sys

from symshapes.testing.report import run_kit

from primops.testing.conformance import check_decompositions
from primops.testing.corpus import check_corpus
from primops.testing.derivatives import main

if __name__ == "__main__":
    if sys.argv[1:2] == ["derivatives"]:
        sys.exit(main(sys.argv[2:]))
    if sys.argv[1:] == ["corpus"]:
        sys.exit(check_corpus(strict=False).show())
    sys.exit(run_kit(check_decompositions, "decompositions"))
