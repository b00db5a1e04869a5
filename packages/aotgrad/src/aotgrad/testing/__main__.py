"""``python -m aotgrad.testing --autograd module:attribute``: the kit's table for an autograd."""

import sys

from symshapes.testing.report import run_kit

from .conformance import check_autograd

if __name__ == "__main__":
    sys.exit(run_kit(check_autograd, "autograd"))
