from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pagoda.engine.so_far import SoFar

PLACES = st.none() | st.integers(-12, 12)


@given(
    items=st.lists(st.integers(), max_size=8),
    later=st.lists(st.integers(), max_size=3),
    place=st.builds(slice, PLACES, PLACES, st.sampled_from([None, 1, 2, -1, -2])),
)
def test_it_is_the_list_as_it_was(items: list[int], later: list[int], place: slice) -> None:
    growing = items[:]
    so_far = SoFar(growing)
    growing += later
    assert len(so_far) == len(items)
    assert so_far[place] == items[place]
    assert [*so_far] == items == so_far == SoFar(items)
    assert [so_far[n] for n in range(-len(items), len(items))] == items * 2
    assert repr(so_far) == repr(items)
    assert so_far != [*items, 0]
    assert (0 in so_far) == (0 in items)
