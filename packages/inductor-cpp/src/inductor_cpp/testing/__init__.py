"""Random kernels against loopir's evaluator (extra ``inductor-cpp[testing]``)."""

from inductor_cpp.testing.random_kernels import Sanitized, preload, sweep

__all__ = ["Sanitized", "preload", "sweep"]
