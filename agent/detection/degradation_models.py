"""The models that a host estimates degradation with: those configured, in order, then those that come with whitepanda.

The first model that can estimate a VM counts; where none can, the first one's reason is shown. A file that cannot be
used costs that model alone.
"""

from collections.abc import Callable, Sequence
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from agent.analysis.degradation.model import Estimates, Model, parse
from agent.analysis.signals import INDEX, Values
from agent.analysis.verdict import Degradation
from whitepanda.common import log

_log = log.get("cloud_white")
_MAX_BYTES = 64 << 20


class HostModels:
    """All models of this host, by name. An empty one says "no_model" of every VM."""

    def __init__(self, models: Sequence[tuple[str, Model]] = ()) -> None:
        #: Each with the columns of its inputs among the signals.
        self._models = [
            (name, model, np.array([INDEX[signal] for signal in model.inputs], np.intp)) for name, model in models
        ]

    def estimate(
        self, values: Values, baseline: Values, ticks: NDArray[np.int64], on_failure: Callable[[Exception], None]
    ) -> list[Degradation]:
        """Return one estimate per VM, from its signals now and without interference, both (n, signals).

        `ticks`, (n,): ticks behind each baseline. A model that fails is given to `on_failure`, and estimates
        nothing.
        """
        result = [Degradation(cannot_tell="no_model")] * len(values)
        left = list(range(len(values)))
        for number, (name, model, columns) in enumerate(self._models):
            if not left:
                break
            rows = np.array(left, np.intp)
            try:
                found = model.predict(values[rows][:, columns], baseline[rows][:, columns], ticks[rows])
                estimates = _listed(name, found)
            except Exception as error:  # noqa: BLE001 - a model is foreign data; the next one may do
                on_failure(error)
                estimates = [Degradation(cannot_tell="failed", model=name)] * len(left)
            for row, one in zip(left, estimates, strict=True):
                if number == 0 or not one.cannot_tell:
                    result[row] = one
            left = [row for row in left if result[row].cannot_tell]
        return result


def _listed(name: str, found: Estimates) -> list[Degradation]:
    names = {model: f"{name}: {model}" if model else name for model in set(found.models)}
    numbers = (found.degradation.tolist(), found.low.tolist(), found.high.tolist())
    return [
        Degradation(ratio, low, high, reason, names[model])
        for ratio, low, high, reason, model in zip(*numbers, found.reasons, found.models, strict=True)
    ]


def load(paths: Sequence[str]) -> HostModels:
    """Read the configured models and those shipped; one that cannot be used is logged once."""
    models, folder = [], resources.files("agent") / "models"
    shipped = [file for file in folder.iterdir() if file.name.endswith(".json")] if folder.is_dir() else []
    for file in (*map(Path, paths), *sorted(shipped, key=lambda file: file.name)):
        try:
            models.append((Path(file.name).stem, read_model(file)))
        except (OSError, ValueError) as error:
            text = error.strerror if isinstance(error, OSError) else str(error)
            _log.error(
                "a model of degradation cannot be used; the agent continues without it", error=text, path=str(file)
            )
    return HostModels(models)


def read_model(file: Path | Traversable) -> Model:
    """Read a model whose inputs are signals; OSError or ValueError says why it cannot be used."""
    with file.open("rb") as stream:
        raw = stream.read(_MAX_BYTES + 1)
    if len(raw) > _MAX_BYTES:
        raise ValueError(f"it has more than {_MAX_BYTES >> 20} MiB")
    try:
        data = msgspec.json.decode(raw, type=dict)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"it is not a JSON object: {error}") from error
    model = parse(data)
    for name in model.inputs:
        if name not in INDEX:
            raise ValueError(f"its input {name!r} is not a signal of the agent (docs/metrics.md)")
    return model
