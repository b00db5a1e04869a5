"""Text of neutral code."""

from __future__ import annotations

from .instruction import Code, Label


def format_code(code: Code) -> str:
    """One line per instruction: source line, label, operation, operand, exception handler."""
    names: dict[Label, str] = {}
    for item in code.instructions:
        if item.label is not None:
            names[item.label] = f"L{len(names)}"
    lines = [f"{code.name}({', '.join(code.varnames[: code.parameter_count])})"]
    last = None
    for item in code.instructions:
        line = item.position[0]
        number = str(line) if line is not None and line != last else ""
        last = line
        label = f"{names[item.label]}:" if item.label is not None else ""
        arg = (
            names.get(item.arg, "?")
            if isinstance(item.arg, Label)
            else ""
            if item.arg is None
            else repr(item.arg)
        )
        handler = (
            f"  [{names.get(item.handler.target, '?')} at {item.handler.depth}]"
            if item.handler is not None
            else ""
        )
        lines.append(f"{number:>5} {label:>5} {item.op.name:<22} {arg}{handler}".rstrip())
    return "\n".join(lines)
