"""Rivals of Pitot, from appendix B.4 of its paper: networks over features, multipliers or attention for interferers.

As in the paper they predict the logarithm, with two hidden layers of 256, GELU. Loss (linear in the
logarithm's error), schedule and target (the standardised logarithm) are those of whitepanda.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from central.models.pitot import Rows

STEPS, BATCH, RATE, HIDDEN, HUBER = 4000, 2048, 2e-3, 256, 0.02
#: Of the attention: width of keys, queries and values; hidden units of its output.
WIDTH, OUTPUT = 8, 32


def network_rival(
    kind: str,
    rows: Rows,
    log_us: np.ndarray,
    features: tuple[np.ndarray, np.ndarray],
    asked: tuple[Rows, ...],
    seed: int,
) -> tuple[np.ndarray, ...]:
    """Train a rival ("network" or "attention") on rows; return its predictions (logarithms) for each of `asked`."""
    x_w, x_p = (jnp.asarray((x - x.mean(0)) / (x.std(0) + 1e-6), dtype=jnp.float32) for x in features)
    mean, deviation = log_us.mean(), log_us.std()
    target = jnp.asarray((log_us - mean) / deviation, dtype=jnp.float32)
    keys = jax.random.split(jax.random.PRNGKey(seed), 3)
    w, p = x_w.shape[1], x_p.shape[1]
    is_attention = kind == "attention"
    parameters = {
        "base": layers(keys[0], (w + p, HIDDEN, HIDDEN, 1 + WIDTH * is_attention)),
        "beside": layers(keys[1], (2 * w + p, HIDDEN, HIDDEN, 2 * WIDTH if is_attention else 1)),
        "output": layers(keys[2], (WIDTH, OUTPUT, 1)),
    }

    def predict(net: Any, i: jax.Array, j: jax.Array, k: jax.Array) -> jax.Array:
        there = k >= 0
        base = forward(net["base"], jnp.concatenate([x_w[i], x_p[j]], axis=1))
        pairs = jnp.concatenate(
            [jnp.broadcast_to(x[:, None], (*k.shape, x.shape[1])) for x in (x_w[i], x_p[j])] + [x_w[k]], axis=2
        )
        beside = forward(net["beside"], pairs)
        if not is_attention:
            return base[:, 0] + (beside[..., 0] * there).sum(axis=1)
        scores = jnp.where(there, jnp.einsum("nkd,nd->nk", beside[..., :WIDTH], base[:, 1:]), -1e9)
        mixed = jnp.einsum("nk,nkd->nd", jax.nn.softmax(scores, axis=1), beside[..., WIDTH:])
        return base[:, 0] + jnp.where(there.any(axis=1), forward(net["output"], mixed)[:, 0], 0.0)

    def loss(net: Any, rows: Any) -> jax.Array:
        i, j, k, y = rows
        off = jnp.abs(predict(net, i, j, k) - y) * deviation
        return jnp.where(off < HUBER, off * off / (2 * HUBER) + HUBER / 2, off).mean()

    optimiser = optax.adamw(
        optax.warmup_cosine_decay_schedule(0.0, RATE, STEPS // 20, STEPS, RATE * 0.003), weight_decay=1e-3
    )

    @jax.jit
    def run(net: Any, state: Any, batches: jax.Array, data: Any) -> Any:
        def step(carry: Any, batch: jax.Array) -> Any:
            net, state = carry
            slopes = jax.grad(loss)(net, tuple(part[batch] for part in data))
            updates, state = optimiser.update(slopes, state, net)
            return (optax.apply_updates(net, updates), state), None

        return jax.lax.scan(step, (net, state), batches)[0]

    state, random = optimiser.init(parameters), np.random.default_rng(seed)
    data = (jnp.asarray(rows.workload), jnp.asarray(rows.platform), jnp.asarray(rows.interferers), target)
    batch, chunk = min(BATCH, len(rows)), STEPS // 20
    for _ in range(20):
        batches = random.integers(0, len(rows), (chunk, batch))
        parameters, state = run(parameters, state, jnp.asarray(batches), data)
    ask = jax.jit(predict)
    found = []
    for some in asked:
        columns = [jnp.asarray(x) for x in (some.workload, some.platform, some.interferers)]
        parts = [ask(parameters, *(x[s : s + 8192] for x in columns)) for s in range(0, len(some), 8192)]
        found.append(np.concatenate(parts).astype(np.float64) * deviation + mean)
    return tuple(found)


def layers(key: jax.Array, sizes: tuple[int, ...]) -> list[tuple[jax.Array, jax.Array]]:
    """Return weights and biases of a network."""
    keys = jax.random.split(key, len(sizes) - 1)
    return [
        (jax.random.normal(k, (a, b)) * np.sqrt(2 / a), jnp.zeros(b))
        for k, a, b in zip(keys, sizes[:-1], sizes[1:], strict=True)
    ]


def forward(network: list[tuple[jax.Array, jax.Array]], x: jax.Array) -> jax.Array:
    """Apply a network, GELU between its layers."""
    for weights, bias in network[:-1]:
        x = jax.nn.gelu(x @ weights + bias)
    return x @ network[-1][0] + network[-1][1]
