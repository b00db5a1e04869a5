"""Refuses, when it is imported, an interpreter whose frames and bytecode this package does not
know.
"""

from __future__ import annotations

import platform
import sys
import sysconfig

OLDEST, NEWEST = (3, 11), (3, 14)


def refusal(implementation: str, version: tuple[int, int], has_gil: bool) -> str | None:
    """Why an interpreter can't be used, and what to use instead; None for one that can."""
    supported = (
        f"bytecode_dynamo captures on CPython {OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}"
    )
    if implementation != "CPython" or not OLDEST <= version <= NEWEST:
        return f"{supported}, not on {implementation} {version[0]}.{version[1]}."
    if not has_gil:
        return (
            f"{supported} with the GIL; this build is free-threaded. Use the build without a t in "
            f"its name."
        )
    return None


reason = refusal(
    platform.python_implementation(),
    sys.version_info[:2],
    not sysconfig.get_config_var("Py_GIL_DISABLED"),
)
if reason is not None:
    raise ImportError(reason)
