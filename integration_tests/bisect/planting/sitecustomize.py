"""Plants a bug in a process: a module is loaded with one piece of its source replaced.

``PLANTED_BUG`` is JSON: ``module``, ``before``, ``after``. A directory with this file stands first
in ``PYTHONPATH``.
"""

import importlib.abc
import importlib.machinery
import json
import os
import sys


class Planted(importlib.machinery.SourceFileLoader):
    """Loads a module from changed source; bytecode in caches is not used."""

    def __init__(self, name: str, path: str, before: str, after: str) -> None:
        super().__init__(name, path)
        self.before, self.after = before, after

    def get_code(self, fullname: str):
        source = self.get_data(self.path).decode()
        if source.count(self.before) != 1:
            sys.exit(f"{self.path} has {self.before!r} {source.count(self.before)} times")
        return compile(source.replace(self.before, self.after), self.path, "exec")


class Finder(importlib.abc.MetaPathFinder):
    """Finds the one module that is changed."""

    def __init__(self, module: str, before: str, after: str) -> None:
        self.module, self.before, self.after = module, before, after

    def find_spec(self, name: str, path: object, target: object = None):
        if name != self.module:
            return None
        found = importlib.machinery.PathFinder.find_spec(name, path)  # type: ignore[arg-type]
        if found is not None and found.origin is not None:
            found.loader = Planted(name, found.origin, self.before, self.after)
        return found


if planted := os.environ.get("PLANTED_BUG"):
    sys.meta_path.insert(0, Finder(**json.loads(planted)))
