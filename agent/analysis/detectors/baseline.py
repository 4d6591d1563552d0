"""The baseline of each VM: learnt online, robust, aged. Rows are VMs, which come and go.

Per VM and column x, in quiet ticks:

- mean: m += gain * clip(x - m, +-3 * 1.25 * d), d being the mean absolute deviation, learnt likewise. The gain is
  1 / ticks until ticks * dt reaches the time constant, dt / time constant then: Huber's estimate, exponentially aged;
- noise: the variance, over quiet ticks, of the mean of the last `short_ticks` (and `long_ticks`) values around m.
  Noise of hypervisors is autocorrelated: the variance of a mean of n is not 1/n of one value's, so it is learnt,
  not derived. A prior of `prior_ticks` ticks keeps it sane while little is known.

While another VM inflicts, learning continues with a far longer time constant, so that permanent interference finally
becomes the baseline. This method is whitepanda's own; the paper uses the means of a first quiet phase.

Also learnt in quiet ticks, with the same ageing: in how many samples exactly k of the VM's vCPU threads were running.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agent.analysis.signals import Bools, Floats, VmKey

_CLIP = 3.0  # deviations beyond this many standard deviations count as this many
_TO_STD = 1.2533  # mean absolute deviation -> standard deviation, of a normal distribution
_PLAIN_TICKS = 8.0  # with fewer ticks the spread is not known well enough to clip with
_RESTORED_TICKS = 600  # a restored baseline is dropped if its VM is not seen for as many ticks
_NOISE_CLIP = 12.0  # the square of a window's deviation is clipped to this many times its variance
_LOAD_RIDGE = 5.0  # squares of the load's logarithm, summed over ticks: ten ticks at twice the load
_NAN = math.nan


@dataclass(frozen=True, slots=True)
class BaselineSettings:
    """How baselines are learnt. Times in seconds."""

    quiet_time_constant_s: float = 300.0
    held_time_constant_s: float = 3600.0
    min_ticks: int = 30  # a baseline of fewer quiet ticks is not ready
    short_ticks: int = 4
    long_ticks: int = 16
    prior_ticks: float = 15.0
    load_time_constant_s: float = 86_400.0  # of the effect of the VM's own load on its other signals
    restored_half_life_s: float = 86_400.0  # of the weight of baselines learnt before a restart of the agent
    restored_max_age_s: float = 7 * 86_400.0


class Baselines:
    """The baselines of all VMs of a host, in rows like `keys`.

    The noisy columns come last; only they have windows and noise. `prior_std` and `floor_std`, for the noisy columns:
    standard deviation of a short window's mean before it is learnt, and its minimum.

    `ticks`, (VMs,): quiet ticks behind each baseline, aged. `mean` and `count`, (VMs, columns): the baselines (NaN: not
    known) and their ticks. `first_seen_s` and `seen`, (VMs,): clock of each VM's first tick, number of its ticks.
    `samples`, (VMs, most vCPUs + 1): in how many quiet samples k vCPU threads ran, aged.
    """

    def __init__(
        self, settings: BaselineSettings, columns: Sequence[str], prior_std: Floats, floor_std: Floats
    ) -> None:
        self._settings = settings
        self.columns = tuple(columns)
        self._noisy = slice(len(columns) - len(prior_std), len(columns))
        self._prior = np.square(prior_std)
        self._floor = np.square(floor_std)
        self.keys: tuple[VmKey, ...] = ()
        self._restored: dict[tuple[str, str], dict[str, Any]] = {}
        self._restored_ticks = 0
        self._cursor = 0
        width, noisy, long = len(columns), len(prior_std), settings.long_ticks
        self.ticks, self.first_seen_s, self._load_weight = (np.zeros(0) for _ in range(3))
        self.seen, self._vcpus = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self.mean, self.count, self._spread = (np.zeros((0, width)) for _ in range(3))
        self.samples: Floats = np.zeros((0, 1))
        self._short, self._long, self._noise_count, self._load_response = (np.zeros((0, noisy)) for _ in range(4))
        # Twice the length, the second half as the first: any window lies in one piece.
        self._ring: Floats = np.zeros((2 * long, 0, noisy))
        self._known: Floats = np.zeros((2 * long, 0, noisy))
        self._unknown: Bools = np.zeros((0, noisy), bool)  # of the last tick
        self._same_ticks = 0  # for how many ticks now the same values have been unknown
        # Of the present tick, made when first asked for.
        self._windows: dict[int, Floats] = {}
        self._variances: dict[int, Floats] = {}
        self._noise_now: tuple[Floats, Floats] | None = None

    # --- rows ---

    def match(self, keys: tuple[VmKey, ...], at_s: float) -> NDArray[np.int64] | None:
        """Give each VM of a tick its row; a new epoch or size is a new VM.

        Returns per VM the row that it had before, -1 for a new VM; None: nothing has changed.
        """
        if keys == self.keys:
            return None
        source = old_rows(self.keys, keys)
        self._forget_noise()
        self._same_ticks = 0
        move_rows(self, source, ticks=0.0, first_seen_s=at_s, seen=0, mean=_NAN, count=0.0, samples=0.0)
        move_rows(self, source, _spread=0.0, _short=0.0, _long=0.0, _noise_count=0.0)
        move_rows(self, source, _load_weight=0.0, _load_response=0.0)
        self._vcpus = np.array([key.vcpus for key in keys], np.int64)
        self.samples = _widened(self.samples, int(self._vcpus.max(initial=0)) + 1)
        self._ring, self._known = (
            taken(array.swapaxes(0, 1), source, 0.0).swapaxes(0, 1).copy() for array in (self._ring, self._known)
        )
        self.keys = keys
        for row in np.flatnonzero(source < 0):
            held = self._restored.pop((keys[row].uuid, keys[row].epoch), None)
            if held is not None and held["vcpus"] == keys[row].vcpus:
                self._take_back(int(row), held)
        return source

    # --- windows ---

    def observe(self, values: Floats) -> None:
        """Take a tick's values, shape (VMs, columns), into the windows; nothing is learnt yet."""
        noisy = values[:, self._noisy]
        unknown = np.isnan(noisy)
        self._windows.clear()
        self._restored_ticks += 1
        if self._restored_ticks == _RESTORED_TICKS:
            self._restored.clear()
        self.seen += 1
        self._same_ticks = self._same_ticks + 1 if self._same_ticks and (unknown == self._unknown).all() else 1
        self._unknown = unknown
        long = self._settings.long_ticks
        self._cursor = (self._cursor + 1) % long
        filled = noisy.copy()
        filled[unknown] = 0.0
        for at in (self._cursor, self._cursor + long):
            self._known[at] = ~unknown
            self._ring[at] = filled

    def window(self, ticks: int) -> Floats:
        """Return the means of the last `ticks` values, shape (VMs, noisy columns); NaN if none was known."""
        found = self._windows.get(ticks)
        if found is None:
            end = self._cursor + self._settings.long_ticks + 1
            total = self._ring[end - ticks : end].sum(axis=0)
            if self._same_ticks >= ticks:
                found = total / ticks
                found[self._unknown] = _NAN
            else:
                known = self._known[end - ticks : end].sum(axis=0)
                found = np.where(known > 0, total / np.maximum(known, 1.0), _NAN)
            self._windows[ticks] = found
        return found

    def variance(self, ticks: int) -> Floats:
        """Return the variance of the difference between a window of `ticks` and the baseline in quiet.

        It is the noise of the window's mean, interpolated between the two learnt lengths, plus the uncertainty of a
        baseline made of few ticks.
        """
        found = self._variances.get(ticks)
        if found is None:
            settings = self._settings
            if self._noise_now is None:
                self._noise_now = self._make_noise()
            short, long = self._noise_now
            exponent = math.log(ticks / settings.short_ticks) / math.log(settings.long_ticks / settings.short_ticks)
            noise = short if exponent == 0 else short * (long / short) ** exponent
            # A mean over n ticks is as uncertain as the mean of n / long_ticks long windows.
            found = noise + long * (settings.long_ticks / np.maximum(self.count[:, self._noisy], settings.short_ticks))
            self._variances[ticks] = found
        return found

    def _forget_noise(self) -> None:
        self._noise_now = None
        self._variances.clear()

    def _make_noise(self) -> tuple[Floats, Floats]:
        weight = self._settings.prior_ticks / (self._settings.prior_ticks + self._noise_count)
        rest = 1 - weight
        short = np.maximum(self._prior * weight + self._short * rest, self._floor)
        # Prior: the long window has almost as much noise as the short one, as if the noise were slow.
        long = np.maximum(0.7 * self._prior * weight + self._long * rest, 0.25 * self._floor)
        return short, np.minimum(long, short)

    # --- learning ---

    def learn(self, values: Floats, elapsed_s: float, *, quiet: Bools, held: Bools) -> None:
        """Learn from a tick's `values`, shape (VMs, columns), NaN if not known.

        `quiet`, (VMs,): rows that learn as usual; `held`: rows that learn with the long time constant. Others learn
        nothing.
        """
        settings = self._settings
        self._forget_noise()
        known = ~np.isnan(values)
        most = settings.quiet_time_constant_s / elapsed_s
        some_held = bool(held.any())
        learning = known & quiet[:, None]
        self.count += learning
        np.minimum(self.count, most, out=self.count)
        gain = learning / np.maximum(self.count, 1.0)
        if some_held:
            gain[held] = np.where(known[held], elapsed_s / settings.held_time_constant_s, 0.0)
        first = learning & np.isnan(self.mean)
        if first.any():
            self.mean[first] = values[first]
        deviation = values - self.mean
        deviation[np.isnan(deviation)] = 0.0
        limit = _CLIP * _TO_STD * self._spread
        limit[self.count < _PLAIN_TICKS] = np.inf
        # If values never varied, a limit of 0 would freeze the mean: a first change counts a little.
        limit = np.fmax(limit, 1e-3 * np.abs(self.mean) + 1e-9)
        if some_held:
            limit[held] = np.inf
        self.mean += gain * np.minimum(np.maximum(deviation, -limit), limit)
        if some_held:
            gain[held] = 0.0
        self._spread += gain * (np.minimum(np.abs(deviation), 2 * limit) - self._spread)
        self.ticks = np.minimum(self.ticks + quiet, most)
        self._learn_noise(gain[:, self._noisy])

    def _learn_noise(self, gain: Floats) -> None:
        settings = self._settings
        learning = (gain > 0) & (self.count[:, self._noisy] >= _PLAIN_TICKS)
        self._noise_count += learning
        # Noise is learnt more slowly than the mean: a variance needs more ticks.
        step = learning * np.maximum(gain / 4, 1.0 / np.maximum(self._noise_count, 1.0))
        mean = self.mean[:, self._noisy]
        short, long = self._make_noise()
        for kept, now, ticks in ((self._short, short, settings.short_ticks), (self._long, long, settings.long_ticks)):
            square = np.square(self.window(ticks) - mean)
            more = step * (np.minimum(square, _NOISE_CLIP * now) - kept)
            more[np.isnan(more)] = 0.0
            np.add(kept, more, out=kept)

    def learn_samples(self, running: Floats, elapsed_s: float, *, quiet: Bools) -> None:
        """Count a sample of `running`, shape (VMs,): how many vCPU threads of each VM ran, NaN: not sampled."""
        rows = np.flatnonzero(quiet & ~np.isnan(running))
        if not len(rows):
            return
        self.samples[rows, np.clip(running[rows], 0, self._vcpus[rows]).astype(np.intp)] += 1.0
        # As the means: exponentially aged once there are as many as the time constant has ticks.
        total = self.samples[rows].sum(axis=1)
        most = self._settings.quiet_time_constant_s / elapsed_s
        self.samples[rows] *= np.minimum(1.0, most / total)[:, None]

    def learn_load(self, rows: Bools, shift: Floats, deviation: Floats, elapsed_s: float) -> None:
        """Learn the effect of a VM's own load on its noisy columns: least squares through the origin.

        `rows`, (VMs,): where no other VM does more than usual. `shift`, (VMs,): logarithm of the load over its
        baseline, >= 0. `deviation`, (VMs, n): of the first n noisy columns from their baselines; NaN counts as 0.
        """
        decay = math.exp(-elapsed_s / self._settings.load_time_constant_s)
        weight = np.where(rows, shift, 0.0)
        self._load_weight = decay * self._load_weight + weight * weight
        self._load_response *= decay
        response = deviation * weight[:, None]
        response[np.isnan(response)] = 0.0
        self._load_response[:, : response.shape[1]] += response

    def load_slope(self) -> tuple[Floats, Floats]:
        """Return change per unit of load, (VMs, noisy columns), >= 0, and the share of prior variance left, (VMs,)."""
        weight = self._load_weight + _LOAD_RIDGE
        return np.maximum(self._load_response / weight[:, None], 0.0), _LOAD_RIDGE / weight

    def relearn(self, rows: Bools) -> None:
        """Let the next ticks of these rows weigh far more: what was learnt was not their baseline."""
        self.count[rows] = np.minimum(self.count[rows], 1.0)
        self.samples[rows] /= np.maximum(self.samples[rows].sum(axis=1, keepdims=True), 1.0)
        self._forget_noise()

    # --- on disk ---

    def dump(self) -> list[dict[str, Any]]:
        """Return the baselines for JSON, with restored ones whose VM was not seen yet."""
        rows = [self._dumped(row) for row in range(len(self.keys)) if self.ticks[row] > 0]
        return rows + list(self._restored.values())

    def _dumped(self, row: int) -> dict[str, Any]:
        key, start = self.keys[row], self._noisy.start
        # `tolist` first: taking numbers from the arrays one by one was most of the cost.
        rows = [array[row].tolist() for array in self._kept()]
        noise = [()] * start + list(zip(*rows[3:], strict=True))
        columns = zip(self.columns, zip(*rows[:3], strict=True), noise, strict=True)
        return {
            "uuid": key.uuid,
            "epoch": key.epoch,
            "vcpus": key.vcpus,
            "ticks": float(self.ticks[row]),
            "columns": {name: _rounded((*plain, *noisy)) for name, plain, noisy in columns if plain[2] > 0},
            "looks": _rounded(self.samples[row, : key.vcpus + 1].tolist()),
            "load": {
                "weight": float(self._load_weight[row]),
                "response": dict(zip(self.columns[start:], self._load_response[row].tolist(), strict=True)),
            },
        }

    def _kept(self) -> tuple[Floats, ...]:
        """Return the arrays that are kept on disk, in the file's order; the last three have noisy columns only."""
        return self.mean, self._spread, self.count, self._short, self._long, self._noise_count

    def restore(self, rows: Sequence[Mapping[str, Any]], age_s: float) -> None:
        """Take back what `dump` returned, `age_s` seconds ago; each is used once its VM is seen in the same epoch.

        ValueError names what is wrong; then nothing was taken.
        """
        settings = self._settings
        if age_s > settings.restored_max_age_s:
            return
        weight = 0.5 ** (max(age_s, 0.0) / settings.restored_half_life_s)
        checked = [self._checked(place, row, weight) for place, row in enumerate(rows)]
        self._restored = {(row["uuid"], row["epoch"]): row for row in checked}
        self._restored_ticks = 0

    def _checked(self, place: int, row: Mapping[str, Any], weight: float) -> dict[str, Any]:
        try:
            load, vcpus = row["load"], int(row["vcpus"])
            looks = zip(range(vcpus + 1), row["looks"], strict=True)
            response = {name: _finite(number, -math.inf) * weight for name, number in load["response"].items()}
            known = ((name, numbers) for name, numbers in row["columns"].items() if name in self.columns)
            return {
                "uuid": str(row["uuid"]),
                "epoch": str(row["epoch"]),
                "vcpus": vcpus,
                "ticks": _finite(row["ticks"]) * weight,
                # Other columns are of another version of the agent.
                "columns": {name: self._numbers(name, numbers, weight) for name, numbers in known},
                "looks": [_finite(number) * weight for _, number in looks],
                "load": {"weight": _finite(load["weight"]) * weight, "response": response},
            }
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"baselines: row {place}: {error!r}") from error

    def _numbers(self, name: str, numbers: Sequence[Any], weight: float) -> list[float]:
        noisy = self.columns.index(name) >= self._noisy.start
        mean, spread, count, *noise = numbers
        if len(noise) != (3 if noisy else 0):
            raise ValueError(f"column {name!r} has {len(numbers)} numbers")
        return [_finite(mean, -math.inf), _finite(spread), _finite(count) * weight, *map(_finite, noise)]

    def _take_back(self, row: int, held: Mapping[str, Any]) -> None:
        start = self._noisy.start
        self._forget_noise()
        self.ticks[row] = held["ticks"]
        self.samples[row, : len(held["looks"])] = held["looks"]
        self._load_weight[row] = held["load"]["weight"]
        for column, name in enumerate(self.columns[start:]):
            self._load_response[row, column] = held["load"]["response"].get(name, 0.0)
        for name, numbers in held["columns"].items():
            from_last = self.columns.index(name) - len(self.columns)
            for array, number in zip(self._kept(), numbers, strict=False):  # three numbers for a column without noise
                array[row, from_last] = number


def old_rows(old: Sequence[VmKey], new: Sequence[VmKey]) -> NDArray[np.int64]:
    """Return each new VM's old row, -1 if it has none."""
    places = {key: row for row, key in enumerate(old)}
    return np.array([places.get(key, -1) for key in new], np.int64)


def dumped_vms(data: Mapping[str, Any], now_unix_s: float, known: int) -> tuple[Sequence[Any], float]:
    """Return the VMs that a detector dumped and their age in seconds; ValueError: not of this format."""
    if data.get("format") != known or not isinstance(data.get("vms"), list):
        raise ValueError(f"baselines: format {data.get('format')!r}, this detector reads {known}")
    unix_s = data.get("unix_s")
    return data["vms"], now_unix_s - unix_s if isinstance(unix_s, int | float) else 0.0


def move_rows(owner: object, source: NDArray[np.int64], **defaults: object) -> None:
    """Replace arrays of `owner` by their rows at the places in `source`, with a default where the place is -1."""
    for name, default in defaults.items():
        setattr(owner, name, taken(getattr(owner, name), source, default))


def taken(array: NDArray[Any], source: NDArray[np.int64], default: object) -> NDArray[Any]:
    """Return rows of `array` by their old places, with `default` where the place is -1."""
    result = np.full((len(source), *array.shape[1:]), default, array.dtype)
    old = source >= 0
    result[old] = array[source[old]]
    return result


def _rounded(numbers: Iterable[float]) -> list[float]:
    return [float(f"{number:.7g}") for number in numbers]


def _widened(array: Floats, columns: int) -> Floats:
    """Return `array` with `columns` columns: new ones are 0, those cut off belonged to VMs that are gone."""
    result = np.zeros((len(array), columns))
    kept = min(columns, array.shape[1])
    result[:, :kept] = array[:, :kept]
    return result


def _finite(number: Any, least: float = 0.0) -> float:
    value = float(number)
    if not math.isfinite(value) or value < least:
        raise ValueError(f"{number!r} is not a number{' from 0 on' if least == 0 else ''}")
    return value
