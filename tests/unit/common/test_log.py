from __future__ import annotations

import logging

import pytest
import structlog

from whitepanda.common import log


@pytest.fixture(autouse=True)
def _as_before():
    handlers = logging.getLogger().handlers
    yield
    logging.getLogger().handlers = handlers
    structlog.reset_defaults()


def test_warnings_of_the_standard_librarys_loggers_are_lines_like_ours(capsys, monkeypatch):
    monkeypatch.setenv("JOURNAL_STREAM", "8:1")
    log.configure("info")
    other = logging.getLogger("whitepanda.identity")
    other.info("not told")
    other.warning("%s: no such %s", "/run/x", "file")
    log.get("agent").info("runs", host="h")
    assert capsys.readouterr().err.splitlines() == [
        'level=warning event="/run/x: no such file" component=whitepanda.identity',
        "level=info event=runs component=agent host=h",
    ]
