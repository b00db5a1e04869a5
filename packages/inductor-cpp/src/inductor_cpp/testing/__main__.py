"""``python -m inductor_cpp.testing``: see ``random_kernels``."""

import sys

from inductor_cpp.testing.random_kernels import main

sys.exit(main())
