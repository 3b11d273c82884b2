"""Logs: one line an event, its name first, ids as fields; never a secret."""

from __future__ import annotations

import logging
import sys

import structlog


def configure(level: str, style: str) -> None:
    """Send every logger's lines to standard error, as logfmt or JSON."""
    shared: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="ts"),
        structlog.processors.format_exc_info,
        structlog.processors.EventRenamer("msg"),
    ]
    render: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if style == "json"
        else structlog.processors.LogfmtRenderer(key_order=["ts", "level", "msg"], drop_missing=True)
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared, processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, render]
        )
    )
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for chatty in ("asyncio", "alembic", "uvicorn.error"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
