"""Graphs that are cheap to build: a ``GraphModule`` that generates its Python code lazily."""

from __future__ import annotations

import linecache
import weakref
from typing import Any

from torch.fx import Graph, GraphModule, Node, graph_module


class PlainGraph(Graph):
    """A graph without torch's search for sizes in the arguments of each new node.

    The caller passes sizes as nodes.
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
        """Inserts a node at the insertion point."""
        node = super().create_node(op, target, name=name, type_expr=type_expr)
        if args or kwargs:
            node._update_args_kwargs(args or (), kwargs or {})  # type: ignore[attr-defined]
        return node


class _Forward:
    """Placeholder for ``forward``; the first access generates the code."""

    def __get__(self, module: Any, owner: Any) -> Any:
        (owner.lazy_module() if module is None else module).recompile()
        return owner.forward if module is None else module.forward


class LazyGraphModule(GraphModule):
    """A GraphModule whose code is generated on first access.

    Generating code costs several times more than building the graph, and compilers never run it.
    """

    forward: Any = _Forward()
    lazy_module: Any

    def recompile(self) -> Any:
        """Generates the code, except when the constructor calls it."""
        # CPython 3.13.0 frees no module whose dict was written to before its constructor ran
        if "_is_constructed" not in self.__dict__:
            self._is_constructed = True
            type(self).lazy_module = weakref.ref(self)  # each graph module has a class of its own
            return None
        code = super().recompile()
        weakref.finalize(self, _forget_source, self.forward.__code__.co_filename)
        return code

    def ensure_code(self) -> None:
        """Generates the code if there is none."""
        if "_code" not in self.__dict__:
            self.recompile()

    def __getattr__(self, name: str) -> Any:
        if name == "_code":
            self.recompile()
            return self._code
        return super().__getattr__(name)

    def __reduce__(self) -> Any:
        self.ensure_code()  # pickles hold the code
        return super().__reduce__()


def _forget_source(name: str) -> None:
    """Drops a dead module's source, which torch.fx would cache forever for tracebacks."""
    linecache.cache.pop(name, None)
    getattr(graph_module._loader, "eval_cache", {}).pop(name, None)
