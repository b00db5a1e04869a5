"""``python -m loopir.testing --generator module:attribute``: the kit's table for a generator."""

import sys

from symshapes.testing.report import run_kit

from .conformance import check_code_generator

if __name__ == "__main__":
    sys.exit(run_kit(check_code_generator, "generator"))
