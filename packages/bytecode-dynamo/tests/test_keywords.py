"""Every rule takes the arguments of its callable by name, in any order."""

import inspect

from bytecode_dynamo.function_table import CONSTRUCTORS, FUNCTIONS
from bytecode_dynamo.rule_table import RuleFor, positions_of

NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
PRIVATE = {"self"}  # bound by the call of a method
PARTLY = {"inspect.signature"}  # the options of evaluating annotations break the graph


def calls():
    """Callables with their rules and the parameters to pass by name."""
    pairs = [*FUNCTIONS._rules.values(), *CONSTRUCTORS.items()]
    for function, rule in pairs:
        try:
            parameters = inspect.signature(function).parameters.values()
        except (ValueError, TypeError):
            continue
        named = [one for one in parameters if one.kind in NAMED and not one.name.startswith("_")]
        if any(one.kind is one.POSITIONAL_ONLY and one.default is one.empty for one in parameters):
            continue
        for wanted in (named, [one for one in named if one.default is one.empty]):
            if wanted and {one.name for one in wanted}.isdisjoint(PRIVATE):
                yield function, rule, wanted


def accepts(function, rule, names):
    """Whether the rule can be called with these names."""
    bound, inner = (2, rule.rule) if isinstance(rule, RuleFor) else (1, rule)
    placed = [one.name for one in positions_of(function, inner, bound, (), names)]
    rest = dict.fromkeys(name for name in names if name not in placed)
    try:
        inspect.signature(inner).bind(*range(bound), *placed, **rest)
    except TypeError:
        return False
    return True


def test_rules_accept_the_names_of_their_callables():
    found = list(calls())
    assert len(found) > 300
    refused = {
        f"{function.__module__}.{function.__qualname__}"
        for function, rule, wanted in found
        if not accepts(function, rule, [one.name for one in reversed(wanted)])
    }
    assert refused == PARTLY
