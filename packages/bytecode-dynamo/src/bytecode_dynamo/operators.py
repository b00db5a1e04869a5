"""The modules that define operators of the namespace ``bytecode_dynamo``. A reader of texts
(``symshapes.text.names``) imports this module when a text names an operator that is not defined.
"""

from bytecode_dynamo.attention import operator

__all__ = ["operator"]
