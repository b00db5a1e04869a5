"""For those who write code generators: a reference generator, a conformance kit, and strategies for
kernels.
"""

from loopir.testing.conformance import CASES, Case, check_code_generator
from loopir.testing.generator import EvaluatorCodeGenerator, EvaluatorTemplates

__all__ = ["CASES", "Case", "EvaluatorCodeGenerator", "EvaluatorTemplates", "check_code_generator"]
