"""What is said of a torch that these packages are not tested with."""

from __future__ import annotations

import warnings

import pytest
import torch
from symshapes.private_parts import MissingPart, stand_in
from symshapes.torch_versions import UntestedTorchWarning, check_version


@pytest.mark.parametrize(
    "version", ["2.11.0", "2.13.0+cpu", "2.15.0a0+git1234", str(torch.__version__)]
)
def test_tested_versions_are_taken_silently(version) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_version(version)


@pytest.mark.parametrize("version", ["2.16.0", "3.0.1+cu140"])
def test_newer_version_gives_a_warning_with_the_tested_range(version) -> None:
    with pytest.warns(UntestedTorchWarning, match=f"torch 2.11 to 2.15; this is {version[:4]}"):
        check_version(version)


@pytest.mark.parametrize("version", ["2.10.1", "1.13.0"])
def test_older_version_is_an_error_that_says_what_to_install(version) -> None:
    with pytest.raises(ImportError, match=r"pip install 'torch>=2.11'"):
        check_version(version)


def test_stand_in_can_be_mentioned_but_not_used() -> None:
    part = stand_in("torch._C._Mode")

    class Derived(part):
        pass

    assert not isinstance(3, part) and {part: 1}[part] == 1 and part.KEY is not None
    for use in (part, Derived, part.KEY):
        with pytest.raises(MissingPart, match="has no torch._C._Mode"):
            use()
