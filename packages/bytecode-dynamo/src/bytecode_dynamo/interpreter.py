"""Refuses, at import, an interpreter whose frames and bytecode are not supported."""

from __future__ import annotations

import platform
import sys
import sysconfig

OLDEST, NEWEST = (3, 11), (3, 14)


def refusal(implementation: str, version: tuple[int, int], has_gil: bool) -> str | None:
    """The reason that an interpreter can't be used, with what to use instead, or None."""
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
