import contextlib
import io
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


def test_names_and_paths_of_others_drive_no_terminal(capsys, monkeypatch):
    monkeypatch.setenv("JOURNAL_STREAM", "8:1")
    log.configure("info")
    logging.getLogger("whitepanda.qemu").warning("%s: no such file", "/run/\x1b[2J\udcff.qmp")
    log.get("vms").warning("odd", vm="a\x9b31m\nlevel=error")
    assert capsys.readouterr().err.splitlines() == [
        r'level=warning event="/run/\x1b[2J\xff.qmp: no such file" component=whitepanda.qemu',
        r'level=warning event=odd component=vms vm="a\x9b31m\nlevel=error"',
    ]


def test_one_line_of_key_value_to_the_standard_error_of_the_moment() -> None:
    log.configure("info")
    logger = log.get("uplink")
    for _ in range(2):  # the first stream is closed by then; the logger has seen it
        with contextlib.redirect_stderr(io.StringIO()) as stream:
            logger.info("connected", host="a b", batches=3)
            logger.debug("not at this level")
        assert stream.getvalue().endswith('level=info event=connected component=uplink host="a b" batches=3\n')
        stream.close()
