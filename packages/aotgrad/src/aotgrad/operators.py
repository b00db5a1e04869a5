"""The modules that define operators of the namespace ``aotgrad``. A reader of texts
(``symshapes.text.names``) imports this module when a text names an operator that is not defined.
"""

from aotgrad import seeded_ops
from aotgrad.tracing import functional_ops, recurrent

__all__ = ["functional_ops", "recurrent", "seeded_ops"]
