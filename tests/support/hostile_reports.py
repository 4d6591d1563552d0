"""What no agent says beside its windows: first words, heartbeats, events, reports of contention; good and bad."""

import math
import random
import time

import grpc

from whitepanda.v1 import agent_pb2

MAX_EVENTS, MAX_TRIGGERS = 1000, 200  # of one batch
_UNSAFE = ("\x1b[2J", "two\nlines", "\x9b31m", "\u2028")
_LONG = "x" * 1025


def _text(rng: random.Random) -> str:
    """Return what is not a name."""
    return rng.choice((*_UNSAFE, _LONG))


def _jobs(rng: random.Random) -> list[str]:
    """Return names of jobs, some of which are none: these count for nothing."""
    return [rng.choice(("job-1", "job-2", "Ä", "", *_UNSAFE, _LONG)) for _ in range(rng.randint(0, 40))]


def _number(rng: random.Random) -> int:
    return rng.choice((0, 1, rng.getrandbits(40), 2**63 - 1, 2**63, 2**64 - 1))


def hello(rng: random.Random, host: str) -> agent_pb2.Hello:
    """Return one that is taken, with numbers and jobs of any kind."""
    return agent_pb2.Hello(
        host=host,
        platform="P",
        protocol_version=rng.choice((1, 1, 1, 2, 2, 2**32 - 1)),
        min_protocol_version=1,
        sent_unix_ns=_number(rng),
        coefficient_version=_number(rng),
        window_ms=rng.getrandbits(32),
        jobs=_jobs(rng),
        held=[agent_pb2.JobTag(job=_text(rng), tag=_number(rng)) for _ in range(rng.randint(0, 9))],
    )


def heartbeat(rng: random.Random) -> agent_pb2.Heartbeat:
    """Return one with numbers and jobs of any kind; nothing of it can be refused."""
    return agent_pb2.Heartbeat(
        sent_unix_ns=_number(rng),
        coefficient_version=_number(rng),
        spooled_batches=_number(rng),
        dropped_batches=_number(rng),
        jobs=_jobs(rng),
    )


def opening(rng: random.Random, host: str) -> tuple[bytes | None, str, grpc.StatusCode]:
    """Return first words that are refused, None for none at all, with the reason and the status that it gets."""
    message = agent_pb2.AgentMessage(hello=hello(rng, host))
    reason, code = rng.choice(
        (
            ("wrong_host", grpc.StatusCode.PERMISSION_DENIED),
            ("bad_hello", grpc.StatusCode.INVALID_ARGUMENT),
            ("protocol_version", grpc.StatusCode.FAILED_PRECONDITION),
            ("no_hello", grpc.StatusCode.FAILED_PRECONDITION),
        )
    )
    if reason == "wrong_host":
        message.hello.host = rng.choice(("", "someone-else", host.upper(), host + "\x00", _text(rng)))
    elif reason == "bad_hello":
        setattr(message.hello, rng.choice(("platform", "agent_version", "boot_id")), _text(rng))
    elif reason == "protocol_version":
        wanted = rng.choice(((99, 3), (2**32 - 1, 2**32 - 1), (0, 0)))
        message.hello.protocol_version, message.hello.min_protocol_version = wanted
    elif rng.random() < 0.3:
        return None, reason, code
    else:
        message = rng.choice(
            (
                agent_pb2.AgentMessage(),
                agent_pb2.AgentMessage(heartbeat=heartbeat(rng)),
                agent_pb2.AgentMessage(batch=agent_pb2.CpiBatch(events=[event(rng)])),
            )
        )
    return message.SerializeToString(), reason, code


def event(rng: random.Random) -> agent_pb2.VmEvent:
    """Return one that is taken."""
    return agent_pb2.VmEvent(
        vm=f"vm-{rng.randint(0, 9)}",
        job="job-1",
        unix_ns=time.time_ns(),
        behaviour=agent_pb2.BEHAVIOUR_VICTIM,
        before=agent_pb2.BEHAVIOUR_STEADY,
        lasted_ns=_number(rng),
        reason="slow",
        evidence=[agent_pb2.Evidence(signal="cpi", value=rng.choice((1.0, math.nan, math.inf)))],
    )


def _bad_time(rng: random.Random) -> int:
    return rng.choice((0, 5, time.time_ns() + 10**15, 2**63, 2**64 - 1))


def bad_event(rng: random.Random) -> tuple[agent_pb2.VmEvent, str]:
    """Return one that is refused, and why."""
    made = event(rng)
    name, value = rng.choice(
        (
            ("vm", ""),
            ("behaviour", agent_pb2.BEHAVIOUR_UNSPECIFIED),
            ("before", 99),
            ("behaviour", -1),
            ("machine", "someone-else"),
            ("reason", rng.choice(_UNSAFE)),
            ("unix_ns", _bad_time(rng)),
            *((name, _text(rng)) for name in ("vm", "epoch", "name", "job", "machine")),
        )
    )
    if rng.random() < 0.1:
        made.culprits.extend([f"vm-{n}" * 60 for n in range(99)])  # more bytes than are allowed
        return made, "bad_event"
    setattr(made, name, value)
    return made, "bad_event_time" if name == "unix_ns" else "bad_event"


def _effect(rng: random.Random) -> agent_pb2.ExpectedEffect:
    return agent_pb2.ExpectedEffect(signal="mn_cpi", before=3.0, after=rng.choice((1.0, math.nan)), low=0.5)


def advice(rng: random.Random) -> agent_pb2.Recommendation:
    """Return a recommendation that is taken, also one of an action that is yet to be invented."""
    return agent_pb2.Recommendation(
        action=rng.choice((agent_pb2.ACTION_CAP_CPU, agent_pb2.ACTION_NOTHING, 99)),
        vm="vm-7",
        job="job-2",
        amount=rng.choice((2.0, math.nan, -1e300)),
        unit="cores",
        evidence=["it uses 9 cores"],
        effect=_effect(rng),
        commands=[agent_pb2.Command(purpose="cap it", words=["virsh", "; rm -rf /", "$(id)"])],
    )


def bad_advice(rng: random.Random) -> agent_pb2.Recommendation:
    """Return a recommendation for which the whole report is refused."""
    made = advice(rng)
    infinite = rng.choice((math.inf, -math.inf))
    fault = rng.choice(("name", "text", "word", "words", "lines", "commands", "amount", "effect"))
    if fault == "name":
        setattr(made, rng.choice(("vm", "name", "job", "victim", "victim_name")), _text(rng))
    elif fault == "text":
        made.evidence.append(_text(rng))
    elif fault == "word":
        made.commands[0].words.append(_text(rng))
    elif fault == "words":
        made.commands[0].words.extend(["again"] * 32)
    elif fault == "lines":
        made.evidence.extend(["more"] * 16)
    elif fault == "commands":
        made.commands.extend([agent_pb2.Command(purpose="more")] * 16)
    elif fault == "amount":
        made.amount = infinite
    else:
        setattr(made.effect, rng.choice(("before", "after", "low", "high", "threshold")), infinite)
    return made


def trigger(rng: random.Random) -> agent_pb2.Trigger:
    """Return a report that is taken, with up to two recommendations."""
    now = time.time_ns()
    return agent_pb2.Trigger(
        unix_ns=now,
        slot_ns=_number(rng),
        since_unix_ns=_number(rng),
        mn_cpi=rng.choice((rng.uniform(0, 9), math.nan)),
        mn_cpi_threshold=rng.choice((1.0, math.nan)),
        found_by=rng.choice(([], [1], [2], [1, 2])),
        coefficient_version=_number(rng),
        victims=[
            agent_pb2.TriggerVictim(
                vm="vm-1",
                job="job-1",
                cpi=2.0,
                n_cpi=rng.choice((3.0, math.nan)),
                threshold_cpi=1.5,
                slow_down=rng.choice((None, agent_pb2.Degradation(ratio=1.5, low=math.nan, high=1.75))),
            )
        ],
        suspects=[
            agent_pb2.TriggerSuspect(
                vm="vm-7", job="job-2", cpu_usage_cores=9.0, score=rng.choice((1.0, math.nan)), reason=99
            )
        ],
        recommendations=[advice(rng) for _ in range(rng.randint(0, 2))],
    )


def bad_trigger(rng: random.Random) -> tuple[agent_pb2.Trigger, str]:
    """Return a report that is refused, and why."""
    made = trigger(rng)
    unknown = rng.choice((math.inf, -math.inf))
    faults = (
        "time",
        "victim",
        "suspect",
        "name",
        "number",
        "score",
        "slow_down",
        "found_by",
        "ended",
        "vms",
        "bytes",
        "machine",
        "advice",
        "advices",
    )
    fault = rng.choice(faults)
    if fault == "time":
        made.unix_ns = _bad_time(rng)
        return made, "bad_trigger_time"
    if fault == "victim":
        setattr(made.victims[0], rng.choice(("vm", "job")), rng.choice(("", _text(rng))))
    elif fault == "suspect":
        setattr(made.suspects[0], rng.choice(("vm", "job")), rng.choice(("", _text(rng))))
    elif fault == "name":
        setattr(rng.choice((made.victims[0], made.suspects[0])), rng.choice(("epoch", "name")), _text(rng))
    elif fault == "number":
        where = rng.choice(((made, "mn_cpi"), (made, "mn_cpi_threshold"), (made.victims[0], "n_cpi")))
        setattr(*where, unknown)
    elif fault == "score":
        setattr(made.suspects[0], rng.choice(("score", "coefficient")), math.inf)
    elif fault == "slow_down":
        name, value = rng.choice(
            (("ratio", unknown), ("ratio", 0.0), ("low", 9.0), ("high", 0.5), ("model", _text(rng)))
        )
        made.victims[0].slow_down.CopyFrom(agent_pb2.Degradation(ratio=1.5, low=1.25, high=1.75))
        setattr(made.victims[0].slow_down, name, value)
    elif fault == "found_by":
        rng.choice((made, made.victims[0])).found_by.append(rng.choice((0, 3, 99)))
    elif fault == "ended":
        made.ended = True
    elif fault == "vms":
        made.suspects.extend([made.suspects[0]] * 255)
    elif fault == "bytes":
        made.suspects.extend([agent_pb2.TriggerSuspect(vm="v" * 500, job="j")] * 200)
    elif fault == "machine":
        made.machine = rng.choice(("someone-else", _text(rng)))
    elif fault == "advice":
        made.recommendations.append(bad_advice(rng))
    else:
        made.recommendations.extend([advice(rng) for _ in range(17)])
    return made, "bad_trigger"
