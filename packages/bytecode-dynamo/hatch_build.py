"""Hatch build hook: compiles the C extension into the wheel, or next to the sources for an editable
install.
"""

from __future__ import annotations

import runpy
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CustomBuildHook(BuildHookInterface):
    """Runs ``bytecode_dynamo/build.py``, which is loaded by path: the package itself cannot be
    imported yet.
    """

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the extension and say that the wheel is for this interpreter and platform only."""
        if self.target_name != "wheel":
            return
        package = Path(self.root) / "src" / "bytecode_dynamo"
        builder = runpy.run_path(str(package / "build.py"), run_name="bytecode_dynamo_build")
        name = builder["extension_name"]()
        if version == "editable":
            builder["build"](package / name)
        else:
            self.folder = tempfile.TemporaryDirectory()  # lasts as long as the hook
            built = builder["build"](Path(self.folder.name) / name)
            build_data["force_include"][str(built)] = f"bytecode_dynamo/{name}"
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
