"""Training of Pitot's members, in JAX with optax: on whatever device JAX finds."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import NDArray

from central.models.pitot import LEAK, Rows, Shape, Singles

Tree = dict[str, Any]

_CHUNKS = 20
_FLOOR = 1e-6


@dataclass(frozen=True, slots=True)
class Options:
    """How members are trained. Chosen on rows held out of a development split (docs/studies/pitot.md)."""

    rank: int = 96
    interference_rank: int = 16
    interference_types: int = 2
    hidden: int = 256
    learned: int = 8  # learned features of each workload and platform beside those given
    free: bool = True  # embeddings have a part that is no function of any feature
    tower: bool = True  # and one that is; without towers this is plain matrix factorisation
    steps: int = 4000
    batch: int = 2048
    rate: float = 2e-3
    decay: float = 0.3
    huber: float = 0.02  # the loss is quadratic below this difference of logarithms and linear above
    beside_weight: float = 1.0
    quantile: float = 0.5  # of the runtimes, which is learned
    leak: float = LEAK
    # For studies: predict factors, not logarithms, by the relative error, the naive loss of the paper's figure 4a.
    proportional: bool = False

    @property
    def shape(self) -> Shape:
        """Sizes of the embeddings."""
        return Shape(self.rank, self.interference_rank, self.interference_types, self.leak)


@dataclass(frozen=True, slots=True, eq=False)
class Trained:
    """A member: embeddings (workloads, width) and (platforms, width), and the mean loss of the last steps."""

    workload: Singles
    platform: Singles
    loss: float


class Trainer:
    """Holds the rows, and trains one member after the other on them."""

    def __init__(
        self,
        options: Options,
        rows: Rows,
        residuals: NDArray[np.float64],
        workload_features: NDArray[np.float64],
        platform_features: NDArray[np.float64],
    ) -> None:
        """Take n rows, their log runtimes less the baseline, shape (n,), and finite features (names, any number)."""
        self._options = options
        self._rows = len(rows)
        self._batch = min(options.batch, len(rows))
        ids = map(jnp.asarray, (rows.workload, rows.platform, rows.interferers))
        self._data = (*ids, jnp.asarray(residuals, dtype=jnp.float32))
        self._features = (_standardised(workload_features), _standardised(platform_features))

    def member(self, seed: int, progress: Callable[[float], None] = lambda _: None) -> Trained:
        """Train a member. The same seed gives the same member; `progress` is called with the share that is done."""
        options = self._options
        parameters = self._start(seed)
        state = _optimiser(options).init(parameters)
        random = np.random.default_rng(seed)
        steps = max(1, options.steps // _CHUNKS)
        order = np.empty(0, dtype=np.int64)
        loss = 0.0
        done = 0
        while done < options.steps:
            now = min(steps, options.steps - done)
            need = now * self._batch
            while len(order) < need:
                order = np.concatenate([order, random.permutation(self._rows)])
            batches, order = jnp.asarray(order[:need].reshape(now, self._batch)), order[need:]
            parameters, state, mean = _many_steps(options, parameters, state, batches, self._data, self._features)
            loss, done = float(mean), done + now
            progress(done / options.steps)
        w, p = (np.asarray(part) for part in _embeddings(options, parameters, self._features))
        return Trained(w, p, loss)

    def _start(self, seed: int) -> Tree:
        options = self._options
        keys = jax.random.split(jax.random.PRNGKey(seed), 6)
        spread = 0.0 if options.tower else 0.5
        sizes = (options.shape.workload_width, options.shape.platform_width)
        found: Tree = {}
        for k, (kind, x, size) in enumerate(zip("wp", self._features, sizes, strict=True)):
            found[f"net_{kind}"] = _network(keys[k], x.shape[1] + options.learned, options.hidden, size)
            found[f"learned_{kind}"] = jax.random.normal(keys[2 + k], (len(x), options.learned)) * 0.5
            found[f"free_{kind}"] = jax.random.normal(keys[4 + k], (len(x), size)) * spread
        return found


def engine() -> str:
    """Return the training engine: the same rows, options and seed give the same member on one engine and machine."""
    return f"jax {jax.__version__} on {jax.default_backend()}, optax {optax.__version__}"


def _optimiser(options: Options) -> optax.GradientTransformation:
    schedule = optax.warmup_cosine_decay_schedule(
        0.0, options.rate, max(1, options.steps // 20), options.steps, options.rate * 0.003
    )
    return optax.adamw(schedule, b2=0.99, weight_decay=options.decay)


def _embeddings(
    options: Options, parameters: Tree, features: tuple[jax.Array, jax.Array]
) -> tuple[jax.Array, jax.Array]:
    """Return the embeddings of all workloads and platforms: towers plus free parts, scaled."""
    found = []
    for kind, x, scale in zip("wp", features, _scales(options.shape), strict=True):
        values = jnp.zeros(1)
        if options.tower:
            values = _forward(parameters[f"net_{kind}"], jnp.concatenate([x, parameters[f"learned_{kind}"]], axis=1))
        if options.free:
            values = values + parameters[f"free_{kind}"]
        found.append(values * scale)
    return found[0], found[1]


def _loss(
    parameters: Tree, options: Options, batch: tuple[jax.Array, ...], features: tuple[jax.Array, jax.Array]
) -> jax.Array:
    shape = options.shape
    r, q, types = shape.rank, shape.interference_rank, shape.interference_types
    w, p = _embeddings(options, parameters, features)
    i, j, k, target = batch
    w_i, p_j, is_there = w[i], p[j], k >= 0
    found = (w_i[:, :r] * p_j[:, :r]).sum(axis=1) + w_i[:, -1] + p_j[:, -1]
    u = (w[:, r + q : r + 2 * q][k] * is_there[:, :, None]).sum(axis=1)
    both = p_j[:, r:-1].reshape(-1, 2, types, q)
    strength = jax.nn.leaky_relu(jnp.einsum("ntq,nq->nt", both[:, 1], u), shape.leak)
    found += (jnp.einsum("ntq,nq->nt", both[:, 0], w_i[:, r : r + q]) * strength).sum(axis=1)
    if options.proportional:
        return jnp.abs(found * jnp.exp(-target) - 1.0).mean()
    off = jnp.abs(found - target)
    # The pinball loss, times 2; of the median it is the absolute error.
    side = 2 * jnp.where(found < target, options.quantile, 1 - options.quantile)
    cost = jnp.where(off < options.huber, off * off / (2 * options.huber) + options.huber / 2, off)
    return (cost * side * jnp.where(is_there.any(axis=1), options.beside_weight, 1.0)).mean()


# Compiled once for the options and sizes, not once for each trainer.
@partial(jax.jit, static_argnums=0)
def _many_steps(
    options: Options,
    parameters: Tree,
    state: optax.OptState,
    batches: jax.Array,
    data: tuple[jax.Array, ...],
    features: tuple[jax.Array, jax.Array],
) -> tuple[Tree, optax.OptState, jax.Array]:
    """Train on batches (steps, rows of a batch); return the new state and the mean loss."""
    optimiser = _optimiser(options)

    def step(carry: tuple[Tree, optax.OptState], rows: jax.Array) -> tuple[tuple[Any, Any], jax.Array]:
        parameters, state = carry
        batch = tuple(part[rows] for part in data)
        loss, slopes = jax.value_and_grad(_loss)(parameters, options, batch, features)
        updates, state = optimiser.update(slopes, state, parameters)
        return (optax.apply_updates(parameters, updates), state), loss

    (parameters, state), losses = jax.lax.scan(step, (parameters, state), batches)
    return parameters, state, losses.mean()


def _scales(shape: Shape) -> tuple[Singles, Singles]:
    """Return factors of the embeddings that make all terms of one size at the start: widths of workload, platform."""
    r, q = shape.rank, shape.interference_rank
    scalar, beside = 0.3, float(np.sqrt(1 / np.sqrt(q)))
    alone = np.full(r, np.sqrt(2 / np.sqrt(r)))
    w = np.concatenate([alone, np.full(2 * q, beside), [scalar]])
    p = np.concatenate([alone, np.full(2 * shape.interference_types * q, beside), [scalar]])
    return w.astype(np.float32), p.astype(np.float32)


def _network(key: jax.Array, inputs: int, hidden: int, outputs: int) -> list[tuple[jax.Array, jax.Array]]:
    sizes, gains = (inputs, hidden, hidden, outputs), (1.4, 1.4, 0.5)
    keys = jax.random.split(key, len(gains))
    return [
        (jax.random.normal(keys[n], sizes[n : n + 2]) / np.sqrt(sizes[n]) * gains[n], jnp.zeros(sizes[n + 1]))
        for n in range(len(gains))
    ]


def _forward(network: list[tuple[jax.Array, jax.Array]], values: jax.Array) -> jax.Array:
    for weights, bias in network[:-1]:
        values = jax.nn.gelu(values @ weights + bias)
    weights, bias = network[-1]
    return values @ weights + bias


def _standardised(features: NDArray[np.float64]) -> jax.Array:
    found = np.asarray(features, dtype=np.float64)
    return jnp.asarray((found - found.mean(axis=0)) / (found.std(axis=0) + _FLOOR), dtype=jnp.float32)
