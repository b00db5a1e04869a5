"""``python -m loopir.testing --generator module:attribute``: the kit's table for a generator.
``python -m loopir.testing corpus``: that of the stored kernels and programs.
"""

import sys

from symshapes.testing.report import run_kit

from .conformance import check_code_generator
from .corpus import check_corpus

if __name__ == "__main__":
    if sys.argv[1:] == ["corpus"]:
        sys.exit(check_corpus(strict=False).show())
    sys.exit(run_kit(check_code_generator, "generator"))
