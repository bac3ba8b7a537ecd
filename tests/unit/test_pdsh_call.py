"""What is taken of PDSH_SSH_ARGS_APPEND."""

from __future__ import annotations

import pytest

from launcher.transports.pdsh_call import own_words


@pytest.mark.parametrize(
    ("said", "taken"),
    [
        ("-q", []),
        ("-4qqC -v", ["-4C", "-v"]),
        ("-oLogLevel=QUIET -lquentin -p 22", ["-oLogLevel=QUIET", "-lquentin", "-p", "22"]),
    ],
)
def test_a_wish_to_be_quiet_is_not_heard(said, taken):
    assert own_words({"PDSH_SSH_ARGS_APPEND": said}) == taken
