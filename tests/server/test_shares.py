"""Each tenant may hold a share of what there is."""

from __future__ import annotations

from collections import Counter

import pytest

from pagoda.server.errors import RejectedError
from pagoda.server.shares import Shares


def test_nothing_is_always_left_and_more_is_not_while_a_share_is_too_small() -> None:
    shares = Shares(8, "things", is_shared=True)
    with shares.holding("a") as mine, shares.holding("b") as other:
        mine.take(4)
        other.take(2)  # now a share is less than the first one has
        mine.take(0)
        assert not shares.has("a", 1)
        assert not shares.has("a", 1, given_back=1)
        assert shares.has("a", 1, given_back=2)
        with pytest.raises(RejectedError, match="has 4 things and must leave as many of the 8"):
            mine.take(1)
        assert mine.num == 4


def test_what_is_held_is_given_back_once() -> None:
    shares = Shares(2, "things", is_shared=False)
    with shares.holding("a") as other:
        other.take(1)
        with shares.holding("a") as holding:
            holding.take(1)
            holding.give_back()
            holding.give_back()
            assert not shares.has("a", 2)
            holding.take(1)
        assert not shares.has("a", 2)
    assert shares.has("a", 2)


def test_who_is_refused_is_told_why_and_counted() -> None:
    num_rejected = Counter[str]()
    shares = Shares(4, "things", is_shared=True, most_per_tenant=3, num_rejected=num_rejected)
    assert shares.most_of_one == 3
    with shares.holding("a") as first, shares.holding("b") as second:
        first.take(2)
        with pytest.raises(RejectedError, match="has 2 things and may have 3") as told:
            first.take(2)
        assert told.value.status_code == 429
        with pytest.raises(RejectedError, match="the server takes 4 things") as told:
            second.take(3)
        assert told.value.status_code == 503
    assert num_rejected == {"rate_limit_exceeded": 1, "server_overloaded": 1}
