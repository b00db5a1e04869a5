"""Settings are typed, documented and few."""

from __future__ import annotations

import dataclasses
import inspect

import pytest
from torchstrata import Config, UsageError, config


def test_every_field_is_documented() -> None:
    source = inspect.getsource(Config)
    for field in dataclasses.fields(Config):
        declaration = source.split(f"    {field.name}: ")[1]
        assert declaration.split("\n")[1].strip().startswith('"""'), field.name
    assert len(dataclasses.fields(Config)) <= 40


def test_patch_restores() -> None:
    before = config.fallback
    with config.patch(fallback="error", numerics="eager"):
        assert (config.fallback, config.numerics) == ("error", "eager")
    assert config.fallback == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"speed": 1}, "unknown option 'speed'; the options are fallback, "),
        ({"fusion": 1}, "must be bool"),
        ({"cuda_graph": True}, "unknown option 'cuda_graph'; did you mean 'cuda_graphs'\\?"),
        ({"partition": "best"}, "must be 'min_cut' or 'default'"),
        ({"verify": "yes"}, "must be True, False, 'contracts', or a share"),
        ({"verify": 1.5}, "a share of the calls"),
        ({"activation_memory_budget": 1.5}, "must be a number from 0 to 1"),
        ({"activation_memory_budget": "half"}, "must be a number from 0 to 1"),
        ({"dump": 3}, "must be a string or None"),
    ],
)
def test_bad_option_says_what_is_valid(options, message) -> None:
    with pytest.raises(UsageError, match=message):
        config.with_options(options)


def test_bad_assignment_keeps_the_value() -> None:
    with pytest.raises(UsageError):
        config.fallback = "never"
    assert config.fallback in ("eager", "error")
