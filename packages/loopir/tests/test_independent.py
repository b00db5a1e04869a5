"""Which launches of a run may be at work at the same time."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from loopir.host.independent import MOST_BESIDE, WHOLE_SLAB, Accesses, independent_before

PARTS = st.tuples(st.integers(0, 12), st.integers(1, 4)).map(lambda p: (p[0], p[0] + p[1]))
ACCESS = st.tuples(
    st.sampled_from(["a", "b", "c", None]), PARTS | st.just(WHOLE_SLAB), st.booleans()
)


def bytes_of(access):
    tensor, (start, end), _ = access
    return {(tensor, 0)} if tensor else {(None, i) for i in range(int(start), int(min(end, 20)))}


def meets(some, others):
    return any((a[2] or b[2]) and bytes_of(a) & bytes_of(b) for a in some for b in others)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(ACCESS, max_size=4), max_size=12))
def test_independent_launches_touch_nothing_that_another_one_writes(launches):
    accesses = [Accesses() for _ in launches]
    for made, touched in zip(accesses, launches):
        for access in touched:
            made.add(*access)
    for number, count in enumerate(independent_before(accesses)):
        others = [
            meets(launches[number], launches[number - back])
            for back in range(1, min(number, MOST_BESIDE) + 1)
        ]
        assert count == next((i for i, met in enumerate(others) if met), len(others))
