"""Random kernels against loopir's evaluator (extra ``inductor-triton[testing]``)."""

from inductor_triton.testing.random_kernels import sweep

__all__ = ["sweep"]
