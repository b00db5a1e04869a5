"""Testing kit: metadata of fakes against eager, and Hypothesis strategies
(``symshapes.testing.strategies``).
"""

from .oracle import check_static, check_symbolic, describe, fake_inputs, with_gradients

__all__ = ["check_static", "check_symbolic", "describe", "fake_inputs", "with_gradients"]
