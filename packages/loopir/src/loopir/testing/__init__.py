"""For those who write code generators: a reference generator, a conformance kit, and strategies for
kernels.
"""

from .conformance import CASES, Case, check_code_generator
from .generator import EvaluatorCodeGenerator, EvaluatorTemplates

__all__ = ["CASES", "Case", "EvaluatorCodeGenerator", "EvaluatorTemplates", "check_code_generator"]
