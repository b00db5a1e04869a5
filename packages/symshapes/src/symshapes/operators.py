"""The modules that define operators of the namespace ``symshapes`` for graphs. A reader of texts
(``symshapes.text.names``) imports this module when a text names an operator that is not defined.
"""

from symshapes import recurrent_layer

__all__ = ["recurrent_layer"]
