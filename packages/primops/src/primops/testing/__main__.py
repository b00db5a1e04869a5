"""``python -m primops.testing derivatives [PRIM...]``: see ``primops.testing.derivatives``."""

import sys

from primops.testing.derivatives import main

if sys.argv[1:2] != ["derivatives"]:
    sys.exit("usage: python -m primops.testing derivatives [PRIM...]")
sys.exit(main(sys.argv[2:]))
