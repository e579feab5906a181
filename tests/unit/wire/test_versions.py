"""Which protocol two releases speak with each other, and the error where there is none."""

from __future__ import annotations

import pytest

from bellglass.errors import VersionMismatch, from_dict
from bellglass.wire.versions import Versions, agree, told


@pytest.mark.parametrize(
    ("ours", "theirs", "spoken"),
    [((1, 1), (1, 1), 1), ((1, 2), (1, 1), 1), ((1, 1), (1, 2), 1), ((2, 4), (3, 9), 4), ((2, 3), (3, 3), 3)],
)
def test_the_newest_that_both_know(ours, theirs, spoken) -> None:
    assert agree(Versions(*ours), Versions(*theirs), "the node", hint="h") == spoken


@pytest.mark.parametrize(
    ("ours", "theirs", "said"), [((1, 1), (2, 2), ("2", "1")), ((3, 4), (1, 2), ("1 to 2", "3 to 4"))]
)
def test_without_one_the_error_names_both(ours, theirs, said) -> None:
    with pytest.raises(VersionMismatch) as caught:
        agree(Versions(*ours), Versions(*theirs), "the node (version 9)", hint="install the same release")
    told_again = from_dict(caught.value.to_dict(), status=503)
    assert type(told_again) is VersionMismatch and not told_again.retryable
    assert told_again.message == f"the node (version 9) speaks protocol {said[0]}, this side speaks {said[1]}"
    assert told_again.details == {"ours": list(ours), "theirs": list(theirs)}


def test_what_a_hello_says() -> None:
    assert told(3) == (3, 3) and told(3, 2) == (2, 3)
    for wrong in ((0,), (-1,), ("1",), (1.0,), (True,), (None,), (1, 2), (2, 0)):
        assert told(*wrong) is None, wrong
