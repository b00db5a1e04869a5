"""``python -m inductor_triton.testing``: see ``random_kernels``."""

import sys

from inductor_triton.testing.random_kernels import main

sys.exit(main())
