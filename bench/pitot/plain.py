"""A plain replica of Pitot: the paper's sizes, loss, optimiser and schedule, and nothing of whitepanda. See pitot.py.

Section 3 and appendix B.3: towers of two hidden layers of 128 (GELU) over the features and one learned one, embeddings
of 32, two kinds of interference between the same embeddings (equation 9), squared error of the log residual
(equation 1), AdaMax at 0.001, 20,000 steps of 512 rows alone (weight 1) and 512 beside one other (weight 0.5),
validated every 200 steps; the step with the least validation loss counts. The paper is silent on first values: LeCun's
normal ones here.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from central.models.pitot import LEAK, Rows, linear_baseline

RANK, HIDDEN, LEARNED, TYPES = 32, 128, 1, 2
STEPS, BATCH, RATE, VALIDATE_EVERY = 20_000, 512, 1e-3, 200
#: Of the loss: rows alone, rows beside one other.
WEIGHTS = (1.0, 0.5)
#: One in so many of the training rows validates, and calibrates the bounds.
CALIBRATING = 5


def plain_replica(
    rows: Rows,
    log_us: np.ndarray,
    validation: tuple[Rows, np.ndarray],
    features: tuple[np.ndarray, np.ndarray],
    asked: tuple[Rows, ...],
    seed: int,
    steps: int = STEPS,
) -> list[np.ndarray]:
    """Train on rows, alone or beside one other; return logarithms of runtimes for each of `asked`."""
    x_w, x_p = (jnp.asarray((x - x.mean(0)) / (x.std(0) + 1e-6), dtype=jnp.float32) for x in features)
    a, b = linear_baseline(rows, log_us, len(x_w), len(x_p))
    random = np.random.default_rng(seed)
    train, check = (by_mode(some, y - baseline(a, b, some)) for some, y in ((rows, log_us), validation))
    net = best = start(jax.random.PRNGKey(seed), x_w, x_p)
    optimiser = optax.adamax(RATE)
    state, least = optimiser.init(net), np.inf

    def loss(net: Any, modes: Any) -> jax.Array:
        w, p = embeddings(net, x_w, x_p)
        errors = [jnp.square(residuals(w, p, *part[:3]) - part[3]).mean() for part in modes]
        return sum(weight * error for weight, error in zip(WEIGHTS, errors, strict=True))

    @jax.jit
    def run(net: Any, state: Any, batches: Any) -> Any:
        def step(carry: Any, places: Any) -> Any:
            net, state = carry
            batch = [tuple(x[at] for x in part) for part, at in zip(train, places, strict=True)]
            updates, state = optimiser.update(jax.grad(loss)(net, batch), state, net)
            return (optax.apply_updates(net, updates), state), None

        return jax.lax.scan(step, (net, state), batches)[0]

    validated = jax.jit(lambda net: loss(net, check))
    for _ in range(0, steps, VALIDATE_EVERY):
        batches = [jnp.asarray(random.integers(0, len(part[0]), (VALIDATE_EVERY, BATCH))) for part in train]
        net, state = run(net, state, batches)
        now = float(validated(net))
        if now < least:
            best, least = net, now
    w, p = embeddings(best, x_w, x_p)
    ask = jax.jit(residuals)
    return [
        np.asarray(ask(w, p, *(jnp.asarray(x) for x in columns(some))), dtype=np.float64) + baseline(a, b, some)
        for some in asked
    ]


def parameters(workload_features: int, platform_features: int, workloads: int, platforms: int) -> int:
    """Count what is learned, the baseline included."""
    shapes = jax.eval_shape(
        start,
        jax.random.PRNGKey(0),
        jnp.zeros((workloads, workload_features)),
        jnp.zeros((platforms, platform_features)),
    )
    return sum(part.size for part in jax.tree.leaves(shapes)) + workloads + platforms


def baseline(a: np.ndarray, b: np.ndarray, rows: Rows) -> np.ndarray:
    return a[rows.workload] + b[rows.platform]


def columns(rows: Rows) -> tuple[np.ndarray, ...]:
    return rows.workload, rows.platform, rows.interferers


def by_mode(rows: Rows, target: np.ndarray) -> list[tuple[jax.Array, ...]]:
    """Return the rows alone and those beside one other: workload, platform, interferers, target."""
    beside = rows.co_runners > 0
    return [
        tuple(jnp.asarray(x[here]) for x in (*columns(rows), target.astype(np.float32))) for here in (~beside, beside)
    ]


def start(key: jax.Array, x_w: jax.Array, x_p: jax.Array) -> Any:
    """Return the first parameters: two towers, a learned feature of each workload and platform."""
    keys = jax.random.split(key, 4)
    outputs = (RANK, RANK * (1 + 2 * TYPES))
    return {
        "towers": [
            layers(keys[n], (x.shape[1] + LEARNED, HIDDEN, HIDDEN, outputs[n])) for n, x in enumerate((x_w, x_p))
        ],
        "learned": [jax.random.normal(keys[2 + n], (len(x), LEARNED)) for n, x in enumerate((x_w, x_p))],
    }


def embeddings(net: Any, x_w: jax.Array, x_p: jax.Array) -> list[jax.Array]:
    """Return those of all workloads and platforms."""
    return [
        forward(tower, jnp.concatenate([x, learned], axis=1))
        for tower, learned, x in zip(net["towers"], net["learned"], (x_w, x_p), strict=True)
    ]


def residuals(w: jax.Array, p: jax.Array, i: jax.Array, j: jax.Array, k: jax.Array) -> jax.Array:
    """Equation 9 less the baseline: w.p + sum over kinds of (w_i.v_s) * leaky(sum over interferers of w_k.v_g)."""
    w_i, p_j = w[i], p[j]
    both = p_j[:, RANK:].reshape(-1, 2, TYPES, RANK)
    others = (w[k] * (k >= 0)[..., None]).sum(axis=1)
    strength = jax.nn.leaky_relu(jnp.einsum("ntr,nr->nt", both[:, 1], others), LEAK)
    suffered = jnp.einsum("ntr,nr->nt", both[:, 0], w_i)
    return (w_i * p_j[:, :RANK]).sum(axis=1) + (suffered * strength).sum(axis=1)


def layers(key: jax.Array, sizes: tuple[int, ...]) -> list[tuple[jax.Array, jax.Array]]:
    keys = jax.random.split(key, len(sizes) - 1)
    return [
        (jax.random.normal(k, (a, b)) / np.sqrt(a), jnp.zeros(b))
        for k, a, b in zip(keys, sizes[:-1], sizes[1:], strict=True)
    ]


def forward(network: list[tuple[jax.Array, jax.Array]], x: jax.Array) -> jax.Array:
    for weights, bias in network[:-1]:
        x = jax.nn.gelu(x @ weights + bias)
    return x @ network[-1][0] + network[-1][1]
