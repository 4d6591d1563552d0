import contextlib
import io

import structlog

from whitepanda.common import log


def test_one_line_of_key_value_to_the_standard_error_of_the_moment() -> None:
    log.configure("info")
    try:
        logger = log.get("uplink")
        for _ in range(2):  # the first stream is closed by then; the logger has seen it
            with contextlib.redirect_stderr(io.StringIO()) as stream:
                logger.info("connected", host="a b", batches=3)
                logger.debug("not at this level")
            assert stream.getvalue().endswith(
                'level=info event=connected component=uplink host="a b" batches=3\n'
            )
            stream.close()
    finally:
        structlog.reset_defaults()


def test_the_journal_needs_no_time_stamps(monkeypatch) -> None:
    monkeypatch.setenv("JOURNAL_STREAM", "8:1")
    log.configure("warning")
    try:
        with contextlib.redirect_stderr(io.StringIO()) as stream:
            log.get("x").warning("hm")
        assert stream.getvalue() == "level=warning event=hm component=x\n"
    finally:
        structlog.reset_defaults()
