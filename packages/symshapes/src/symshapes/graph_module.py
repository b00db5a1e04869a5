"""Graphs that are made quickly: a ``GraphModule`` generates its Python code when somebody asks for
it.
"""

from __future__ import annotations

import linecache
import weakref
from typing import Any

from torch.fx import Graph, GraphModule, Node, graph_module


class PlainGraph(Graph):
    """A graph whose makers see to it that sizes are nodes: torch's own looks through the arguments
    of each call for others.
    """

    def create_node(
        self,
        op: str,
        target: Any,
        args: Any = None,
        kwargs: Any = None,
        name: str | None = None,
        type_expr: Any = None,
    ) -> Node:
        """Appends a node at the place of insertion."""
        node = super().create_node(op, target, name=name, type_expr=type_expr)
        if args or kwargs:
            node._update_args_kwargs(args or (), kwargs or {})  # type: ignore[attr-defined]
        return node


class _Forward:
    """``forward`` while there is no code: who asks for it, of a module or its class, gets what then
    replaces it there.
    """

    def __get__(self, module: Any, owner: Any) -> Any:
        (owner.lazy_module() if module is None else module).recompile()
        return owner.forward if module is None else module.forward


class LazyGraphModule(GraphModule):
    """A GraphModule whose code is generated when it is first asked for.

    That costs several times what building the graph does, and compilers never run it.
    """

    forward: Any = _Forward()
    lazy_module: Any

    def recompile(self) -> Any:
        """Generates the code; put off when called by the constructor."""
        if (
            "_is_made" not in self.__dict__
        ):  # CPython 3.13.0 frees no module whose dict was written to before its constructor ran
            self._is_made = True
            type(self).lazy_module = weakref.ref(self)  # each graph module has a class of its own
            return None
        made = super().recompile()
        weakref.finalize(self, _forget_source, self.forward.__code__.co_filename)
        return made

    def ensure_code(self) -> None:
        """Generates the code unless it is there."""
        if "_code" not in self.__dict__:
            self.recompile()

    def __getattr__(self, name: str) -> Any:
        if name == "_code":
            self.recompile()
            return self._code
        return super().__getattr__(name)

    def __reduce__(self) -> Any:
        self.ensure_code()  # it is what gets pickled
        return super().__reduce__()


def _forget_source(name: str) -> None:
    """Drops the text of a module that is gone, which torch.fx keeps for tracebacks for ever."""
    linecache.cache.pop(name, None)
    getattr(graph_module._loader, "eval_cache", {}).pop(name, None)
