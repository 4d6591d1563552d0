"""The line that stands behind a reason code: true wherever the code comes from."""

import pytest

from agent.display.render import remedy
from collector.base import Reason


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        # Under the unit some of it is what the unit takes away; doctor says which.
        (Reason.NO_PERMISSION, "no_permission: the agent may not read it; `whitepanda doctor` says what it lacks"),
        # Of a bare QEMU's disks, state and threads too.
        (Reason.NOT_VISIBLE, "no QMP socket, unnamed vCPU threads"),
        (Reason.NOT_VISIBLE, "vhost-user, VFIO, librbd"),
    ],
)
def test_what_helps(reason, words):
    assert words in remedy(reason)
    assert "by its unit" not in remedy(reason)
