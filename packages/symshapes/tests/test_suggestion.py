"""Suggestions for misspelt names."""

from symshapes.suggestion import did_you_mean


def test_closest_name_or_nothing() -> None:
    known = ("default", "max-autotune", "Eager")
    assert did_you_mean("max_autotune", known) == "did you mean 'max-autotune'? "
    assert did_you_mean("EAGER", known) == "did you mean 'Eager'? "
    assert did_you_mean(3, known) == ""
    assert did_you_mean("entirely else", known) == ""
