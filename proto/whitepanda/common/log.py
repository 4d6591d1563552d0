"""Logging of the daemons: one line per event, key=value, to standard error (the journal's own time stamps suffice)."""

import io
import logging
import os
import sys

import structlog

from whitepanda.common.texts import printable

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class _StandardError(io.StringIO):
    """Whatever sys.stderr is now: loggers outlive its redirections."""

    def write(self, text: str, /) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()


def configure(level: str) -> None:
    """Set the process's log level and form. Under systemd (JOURNAL_STREAM) no time stamps are written."""
    processors: list[structlog.types.Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.format_exc_info,
    ]
    if "JOURNAL_STREAM" not in os.environ:
        processors.append(structlog.processors.TimeStamper(fmt="iso", utc=True))
    processors.append(structlog.processors.LogfmtRenderer(key_order=["timestamp", "level", "event"], drop_missing=True))
    processors.append(lambda _logger, _method, line: printable(str(line)))  # names and paths are others' words
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.PrintLoggerFactory(file=_StandardError()),
    )
    root = logging.getLogger()
    root.handlers = [_Forward(logging.WARNING)]


class _Forward(logging.Handler):
    """Takes the warnings of modules and libraries that know only the standard library's logging."""

    def emit(self, record: logging.LogRecord) -> None:
        get(record.name).log(record.levelno, record.getMessage(), exc_info=record.exc_info)


def get(component: str, **fields: str) -> structlog.typing.FilteringBoundLogger:
    """Return the logger of one component; its lines have these fields."""
    logger: structlog.typing.FilteringBoundLogger = structlog.get_logger(component=component, **fields)
    return logger
