"""``python -m bytecode_dynamo.testing --capture module:attribute``: the kit's table."""

import sys

from symshapes.testing.report import run_kit

from .conformance import check_capture

if __name__ == "__main__":
    sys.exit(run_kit(check_capture, "capture"))
