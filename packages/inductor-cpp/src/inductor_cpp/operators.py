"""The module that defines the operators of the namespace ``inductor_cpp``. A reader of texts
(``symshapes.text.names``) imports this module when a text names an operator that is not defined.
"""

from inductor_cpp.running import packing

__all__ = ["packing"]
