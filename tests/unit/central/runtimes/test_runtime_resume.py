"""A fit that was stopped continues behind its last member, to the same model; other files beside the model stay."""

import os
import signal
import subprocess
import sys
import textwrap
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

pytest.importorskip("jax", reason="the extra `predict` is not installed")

from central.cli import runtime
from central.models import pitot_training
from central.models.pitot import ALONE, Members, Rows, log_runtimes
from central.runtimes.checkpoint import Checkpoint, digest_of
from central.runtimes.fit import FitOptions, fit
from central.runtimes.model import read_model
from central.runtimes.tables import Features, Names

W, P = 12, 10
OPTIONS = FitOptions(members=2, quantiles=(0.8,), training={"steps": 20, "rank": 4, "hidden": 8, "batch": 64})


def study():
    """Runtimes of W workloads on P platforms, alone and beside one."""
    random = np.random.default_rng(2)
    i, j = (part.ravel() for part in np.meshgrid(np.arange(W), np.arange(P), indexing="ij"))
    i, j = np.tile(i, 2), np.tile(j, 2)
    k = np.where(np.arange(2 * W * P) < W * P, ALONE, random.integers(0, W, 2 * W * P))
    log_us = random.normal(10, 1, W)[i] + random.normal(0, 1, P)[j] + 0.1 * (k >= 0)
    w, p = (Features(Names.of(tuple(f"{what}{n}" for n in range(size))), ("x",), random.normal(size=(size, 1)))
            for what, size in (("w", W), ("p", P)))  # fmt: skip
    return Rows(i, j, k[:, None]), log_us, w, p


def fitted(checkpoint=None, options=OPTIONS, change=0.0):
    rows, log_us, w, p = study()
    return fit(rows, log_us + change * np.arange(len(rows)), w, p, options, {}, checkpoint=checkpoint)


def same(one, other):
    return (one.members.workload == other.members.workload).all() and all(
        (one.pools[count].residuals == other.pools[count].residuals).all() for count in (0, 1)
    )


class Trainers:
    """Stands for the trainer: embeddings by the seed alone, in no time; notes the seeds, and stops before one."""

    def __init__(self, monkeypatch, stop_at=99):
        self.trained, self.stop_at = [], stop_at
        monkeypatch.setattr(pitot_training, "Trainer", self)

    def __call__(self, options, rows, left, workload_features, platform_features):
        self.shape = options.shape
        return self

    def member(self, seed, progress):
        if len(self.trained) == self.stop_at:
            raise KeyboardInterrupt
        self.trained.append(seed)
        random = np.random.default_rng(seed)
        w, p = (random.normal(size=size).astype(np.float32) for size in
                ((W, self.shape.workload_width), (P, self.shape.platform_width)))  # fmt: skip
        progress(1.0)
        return pitot_training.Trained(w, p, 0.5)


def test_a_fit_that_was_stopped_continues_to_the_same_model(tmp_path, monkeypatch):
    said = []
    Trainers(monkeypatch)
    whole = fitted()
    Trainers(monkeypatch, stop_at=1)
    with pytest.raises(KeyboardInterrupt):
        fitted(Checkpoint(tmp_path / "m", said.append))
    assert (tmp_path / "m.partial").exists() and said == []
    trainers = Trainers(monkeypatch)
    checkpoint = Checkpoint(tmp_path / "m", said.append)
    assert same(fitted(checkpoint), whole)
    assert trainers.trained == [1, 2]
    assert said.pop() == f"continuing after 1 of 3 members, which {tmp_path / 'm'}.partial has"
    # Of other runtimes or options nothing is taken.
    for change in ({"change": 1e-9}, {"options": replace(OPTIONS, seed=1)}):
        trainers = Trainers(monkeypatch)
        fitted(checkpoint, **change)
        assert len(trainers.trained) == 3
        assert said.pop().endswith("is of a fit to other rows or with other options; this fit starts over")
    checkpoint.remove()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"mine", b"PK\x03\x04 cut"])
def test_a_file_that_is_not_ours_is_left_alone(content, tmp_path):
    said = []
    (tmp_path / "m.partial").write_bytes(content)
    checkpoint = Checkpoint(tmp_path / "m", said.append)
    assert checkpoint.read("digest", 3) == []
    checkpoint.write("digest", [(np.zeros((1, 1), np.float32), np.zeros((1, 1), np.float32), 0.5)])
    checkpoint.remove()
    assert (tmp_path / "m.partial").read_bytes() == content
    assert [line.partition("partial: ")[2] for line in said] == [
        "not a whitepanda checkpoint, left as is; this fit cannot be resumed"
    ]


def test_what_cannot_be_kept_stops_no_fit(tmp_path):
    said = []
    (tmp_path / "folder").mkdir()
    checkpoint = Checkpoint(tmp_path / "folder" / "m", said.append)
    (tmp_path / "folder").rmdir()
    member = (np.ones((2, 3), np.float32), np.ones((1, 3), np.float32), 0.5)
    checkpoint.write("digest", [member])
    checkpoint.write("digest", [member])
    assert len(said) == 1 and "cannot write: No such file or directory" in said[0]
    (tmp_path / "link").symlink_to(tmp_path / "m")
    assert [Checkpoint(path, said.append).path for path in (tmp_path / "link", tmp_path)] == [None, None]


def test_members_are_kept_as_they_are(tmp_path):
    checkpoint = Checkpoint(tmp_path / "m", lambda _: None)
    members = [(np.full((2, 3), n, np.float32), np.full((1, 4), -n, np.float32), 0.1 * n) for n in (1.0, 2.0)]
    checkpoint.write("digest", members)
    found = checkpoint.read("digest", 9)
    assert [loss for *_, loss in found] == [0.1, 0.2]
    for one, other in zip(found, members, strict=True):
        assert (one[0] == other[0]).all() and (one[1] == other[1]).all()
    assert len(checkpoint.read("digest", 1)) == 1
    assert checkpoint.read("other", 9) == []


def test_digests_tell_every_part_apart():
    x = np.arange(4.0)
    digests = {digest_of(texts, arrays) for texts, arrays in (
        (("a", "b"), [x]), (("ab",), [x]), (("a", "b"), [x.reshape(2, 2)]), (("a", "b"), [x.astype(np.float32)]),
        (("a", "b"), [x[:2], x[2:]]), (("a", "b"), [x + 1e-12]),
    )}  # fmt: skip
    assert len(digests) == 6


@pytest.mark.long
def test_the_proportional_loss_is_the_mean_relative_error():
    training = pitot_training
    rows, log_us, w, p = study()
    left = log_us - log_us.mean()
    options = training.Options(rank=4, hidden=8, proportional=True)
    trainer = training.Trainer(options, rows, left, w.values, p.values)
    start = trainer._start(3)
    members = (np.asarray(part)[None] for part in training._embeddings(options, start, trainer._features))
    found = log_runtimes(Members(options.shape, *members), rows)[0]
    loss = training._loss(start, options, trainer._data, trainer._features)
    assert float(loss) == pytest.approx(np.mean(np.abs(found - np.exp(left)) / np.exp(left)), rel=1e-4)


KILLED = """
    import os, signal, sys
    from central.models.pitot_training import Trainer
    from whitepanda.common import cli

    train, trained = Trainer.member, []

    def member(*arguments):
        if trained:
            os.kill(os.getpid(), signal.SIGKILL)
        trained.append(train(*arguments))
        return trained[-1]

    Trainer.member = member
    cli.main()
"""


@pytest.mark.long
def test_a_fit_that_was_killed_gives_the_same_predictions(tmp_path, monkeypatch):
    rows, log_us, w, p = study()
    header = "workload,platform,interferer,runtime_us"
    columns = (rows.workload, rows.platform, rows.interferers[:, 0], log_us)
    lines = [
        f"w{i},p{j},{'' if k < 0 else f'w{k}'},{np.exp(t):.6f}"
        for i, j, k, t in zip(*(column.tolist() for column in columns), strict=True)
    ]
    (tmp_path / "rows.csv").write_text("\n".join([header, *lines]))
    (tmp_path / "w.csv").write_text("\n".join(["workload", *w.names.names]))
    (tmp_path / "p.csv").write_text("\n".join(["platform", *p.names.names]))
    fit_to = (
        "fit", tmp_path / "rows.csv", "--workload-features", tmp_path / "w.csv", "--platform-features",
        tmp_path / "p.csv", "--members", 1, "--steps", 20, "--out",
    )  # fmt: skip

    def run(*arguments):
        result = CliRunner().invoke(runtime.app, [str(argument) for argument in arguments])
        assert result.exit_code == 0, result.output

    command = [sys.executable, "-c", textwrap.dedent(KILLED), "runtime", *map(str, (*fit_to, tmp_path / "cut"))]
    killed = subprocess.run(command, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert not (tmp_path / "cut").exists() and (tmp_path / "cut.partial").exists()
    trained, train = [], pitot_training.Trainer.member
    monkeypatch.setattr(
        pitot_training.Trainer, "member", lambda self, seed, log: trained.append(seed) or train(self, seed, log)
    )
    run(*fit_to, tmp_path / "cut")
    assert trained == [1, 2]  # the quantile heads; the member is from before
    assert not (tmp_path / "cut.partial").exists()
    run(*fit_to, tmp_path / "whole")
    assert trained == [1, 2, 0, 1, 2]
    assert same(read_model(tmp_path / "cut"), read_model(tmp_path / "whole"))
    for name in ("cut", "whole"):
        out = tmp_path / f"{name}.csv"
        run("predict", tmp_path / "rows.csv", "--model", tmp_path / name, "--epsilon", "0.2", "--out", out)
    assert (tmp_path / "cut.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()
