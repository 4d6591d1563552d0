"""Figures: PNG files (matplotlib, in the extra `train`), and bars for terminals."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from whitepanda.common.errors import UnavailableError
from whitepanda.common.extras import how_to_install
from whitepanda.common.files.durable import writing

if TYPE_CHECKING:
    from matplotlib.figure import Figure


Floats = NDArray[np.float64]

_FULL, _NONE = "█", " "
_PARTS = " ▏▎▍▌▋▊▉"


def bar(value: float, largest: float, width: int) -> str:
    """Return a bar of eighths of characters: `largest`, above 0, fills the width, `value` is not negative."""
    eighths = round(8 * width * min(value / largest, 1.0)) if largest > 0 else 0
    return _FULL * (eighths // 8) + (_PARTS[eighths % 8] if eighths % 8 else "")


def signed_bar(value: float, largest: float, width: int) -> str:
    """Return a bar to the left (below 0) or right of a middle line; at most 2 * width + 1 characters."""
    length = round(width * min(abs(value) / largest, 1.0)) if largest > 0 else 0
    if value < 0:
        return _NONE * (width - length) + _FULL * length + "│"
    return _NONE * width + "│" + _FULL * length


def new_figure(size: tuple[float, float], columns: int = 1, rows: int = 1) -> tuple[Figure, Any]:
    """Return a figure of a size, inches, and its axes: an array of them if there are several.

    Raises UnavailableError if matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - in the extra `train` only
        from matplotlib.figure import Figure  # noqa: PLC0415 - the same
    except ImportError as error:
        raise UnavailableError(f"--plot needs '{error.name}'; {how_to_install('train')}") from error
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns)


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure as PNG, whole or not at all; only its owner can read it: it names jobs or machines.

    Raises InputError if the file cannot be written.
    """
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=120)
    with writing(path, mode=0o600) as file:
        file.write(drawn.getvalue())
