"""Logging of the daemons: one line per event, key=value, to standard error (the journal's own time stamps suffice)."""

import io
import logging
import os
import sys

import structlog

from whitepanda.common.texts import printable


class _StandardError(io.StringIO):
    """The current sys.stderr: loggers outlive its redirections."""

    def write(self, text: str, /) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()


def configure(level: str) -> None:
    """Set the process's log level and form. Under systemd (JOURNAL_STREAM) no time stamps are written."""
    stamp = [] if "JOURNAL_STREAM" in os.environ else [structlog.processors.TimeStamper(fmt="iso", utc=True)]
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.format_exc_info,
            *stamp,
            structlog.processors.LogfmtRenderer(key_order=["timestamp", "level", "event"], drop_missing=True),
            lambda _logger, _method, line: printable(str(line)),  # names and paths come from others
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(file=_StandardError()),
    )
    logging.getLogger().handlers = [_Forward(logging.WARNING)]


class _Forward(logging.Handler):
    """Takes the warnings of libraries that use the standard library's logging."""

    def emit(self, record: logging.LogRecord) -> None:
        get(record.name).log(record.levelno, record.getMessage(), exc_info=record.exc_info)


def get(component: str, **fields: str) -> structlog.typing.FilteringBoundLogger:
    """Return the logger of one component; its lines have these fields."""
    logger: structlog.typing.FilteringBoundLogger = structlog.get_logger(component=component, **fields)
    return logger
