"""Carries actions out and undoes them: after their time, on worsening, on request, at the start and at the end.

The order makes it safe to be killed at any moment: what has to be undone is on the disk before anything is changed, and
is forgotten only after it was undone. Single-threaded; every method may wait for libvirt.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from agent.act.audit import Allowance, Audit, Line
from agent.act.cpu_max import CpuMax
from agent.act.journal import Journal
from agent.act.limits import Named, refusal, uuid_of
from agent.act.records import ActError, Action, Apply, Backend, Done, Limits, Listing, Peer, Record, RefusedError, Undo
from agent.act.victims import Degradation
from collector.base import VmIdentity
from whitepanda.common import log

#: In the audit log for actions of the service itself.
SERVICE = Peer(-1, -1)

_WORSE_SAMPLES = 3  # in a row: one bad second of the victim is nothing
_RETRY_NS = 5 * 10**9

_log = log.get("act")


class Clock:
    """The clocks; tests have their own."""

    def boot_ns(self) -> int:
        """Nanoseconds since boot, sleep included: never set back."""
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)

    def unix_ns(self) -> int:
        """Wall clock, for people."""
        return time.time_ns()


@dataclass(slots=True)
class _Watched:
    """State of an action that is lost with the process. `why`: the reason to undo it; "": none."""

    worse_samples: int = 0
    why: str = ""
    retry_at_ns: int = 0
    settled_at_ns: int | None = None
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class Actor:
    """The service without its socket.

    `vms` returns the VMs of this host, and waits a moment for one of the given UUID or name, which may have just
    started. `cpu_max` replaces the backend of `cap-cpu` for a VM that libvirt does not run. `degradation`: of a VM, by
    UUID and signal ("": whichever is known), from the agent; None: not known.
    """

    limits: Limits
    journal: Journal
    audit: Audit
    backends: Mapping[Action, Backend]
    vms: Callable[[str], Sequence[VmIdentity]]
    cpu_max: Callable[[VmIdentity], CpuMax]
    degradation: Callable[[str, str], Degradation | None]
    boot_id: str
    clock: Clock = field(default_factory=Clock)
    _watched: dict[int, _Watched] = field(default_factory=dict)
    _allowance: Allowance = field(default_factory=Allowance)

    def start(self) -> list[Done]:
        """Undo what an earlier process left that is over or was interrupted."""
        return self._undo_due("left by an earlier process of the service", lambda one: not one.is_applied)

    def stop(self) -> list[Done]:
        """Undo everything, as no process could later. Call it again until nothing is in force."""
        for one in self.journal.records:
            watched = self._watch(one)
            watched.why, watched.retry_at_ns = "the service ends", 0
        return self._undo_due()

    def apply(self, asked: Apply, peer: Peer) -> Done:
        """Limit a VM, or say what would be done if `dry_run` is set.

        RefusedError: the limits forbid it. ActError: libvirt, resctrl or the disk fails; what was changed is undone.
        """
        with self._refusals_logged("apply", peer, asked):
            return self._apply(asked, peer)

    def _apply(self, asked: Apply, peer: Peer) -> Done:
        if not self.limits.enabled:
            raise RefusedError("act.enabled is false: set it in [act] of the agent's configuration")
        asked = msgspec.structs.replace(
            asked,
            vm=uuid_of(asked.vm, self._running),
            victim=uuid_of(asked.victim, self._running) if asked.victim else "",
        )
        ended_s = self.journal.ended_s(self.clock.boot_ns(), self.boot_id)
        if why_not := refusal(asked, self.limits, self.journal.records, ended_s, lambda: len(self.vms(""))):
            raise RefusedError(why_not)
        vm = next((one for one in self.vms(asked.vm) if one.uuid == asked.vm), None)
        if vm is None:
            raise ActError(f"no VM {asked.vm} runs here; `whitepanda vms` lists those that do")
        own = self.cpu_max(vm) if asked.action == "cap-cpu" and not vm.by_libvirt else None
        backend: Backend = own or self.backends[asked.action]
        before, after = backend.read(asked.vm), backend.target(asked.vm, asked.amount)
        if before is None:
            raise ActError(f"no VM {asked.vm} runs here")
        if before == after:
            raise RefusedError(f"VM {asked.vm} already has this limit ({after})")
        command = backend.command(asked.vm, after)
        if self.limits.dry_run:
            done = Done(0, asked.action, asked.vm, before, after, "dry_run", f"would run: {command}")
            if self._allowance.take(self.clock.boot_ns()):
                try:
                    self._audit("apply", done, peer, done.result, asked.why)
                except OSError as error:
                    problem = f"the audit log cannot be written: {error.strerror}; see act.state_dir"
                    raise ActError(problem) from error
            return done
        suffers = self.degradation(asked.victim, "") if asked.victim else None
        record = Record(
            **{key: getattr(asked, key) for key in ("action", "vm", "amount", "victim", "why")},
            **peer._asdict(),
            number=self.journal.next_number,
            before=before,
            after=after,
            began_unix_ns=self.clock.unix_ns(),
            until_boot_ns=self.clock.boot_ns() + round(asked.seconds * 1e9),
            boot_id=self.boot_id,
            victim_degradation=suffers.ratio if suffers else None,
            victim_signal=suffers.signal if suffers else "",
            name=vm.name,
            group=own.group if own else "",
        )
        return self._carry_out(record, backend, peer, command)

    def undo(self, asked: Undo, peer: Peer) -> list[Done]:
        """Undo the given actions; nothing is done if none is in force on a VM.

        RefusedError: there is no such number, no VM has this name, or several have. ActError: the VMs that run are not
        known, so the name cannot be resolved.
        """
        with self._refusals_logged("undo", peer):
            vm = uuid_of(asked.vm, self._named) if asked.vm else ""
            found = [one for one in self.journal.records if asked.number in {0, one.number} and vm in {"", one.vm}]
            if asked.number and not found:
                raise RefusedError(f"no action {asked.number} is in force; `whitepanda act list` has those that are")
        return [self._end(one, peer, "on request") for one in found]

    def tick(self) -> list[Done]:
        """Undo what is over, and retry what could not be undone."""
        return self._undo_due("its time is over")

    def look(self) -> list[Done]:
        """Ask for the victims' state; undo what seems to make it worse. Called every `watch_interval_s`."""
        # A failure for one action does not keep the others from being judged.
        with contextlib.ExitStack() as judging:
            for one in reversed(self.journal.records):
                judging.callback(self._judge, one)
        return self._undo_due()

    def in_force(self) -> tuple[Listing, ...]:
        """Return all actions, with what is left of their time."""
        now = self.clock.boot_ns()

        def left_s(one: Record) -> float:
            return max(0.0, (one.until_boot_ns - now) / 1e9) if one.boot_id == self.boot_id else 0.0

        return tuple(Listing(one, left_s(one), self._watch(one).trouble) for one in self.journal.records)

    def _running(self, name: str) -> Iterator[Named]:
        return (Named(vm.uuid, vm.name, f"{vm.manager}, process {vm.pid}") for vm in self.vms(name))

    def _named(self, name: str) -> Iterator[Named]:
        """Yield the VMs that an undo may mean: also one that is gone while its action is in force."""
        yield from self._running(name)
        yield from (Named(one.vm, one.name, f"action {one.number}") for one in self.journal.records)

    # --- the steps ---

    def _carry_out(self, record: Record, backend: Backend, peer: Peer, command: str) -> Done:
        try:
            self.journal.put(record)
            self._audit("begin", record, peer, "begun", record.why)
        except OSError as error:
            # Nothing was changed. If the disk fails again, the next tick finds that the record is undone.
            try:
                self.journal.end(record, self.clock.boot_ns())
            except OSError as failed:
                _log.error("the journal cannot be written", error=str(failed))
            raise ActError(f"nothing was changed: act.state_dir cannot be written: {error.strerror}") from error
        try:
            backend.write(record.vm, record.after)
        except ActError as error:
            done = self._end(record, SERVICE, f"it failed: {error}")
            outcome = done.detail if done.result == "failed" else done.result
            raise ActError(f"{error}; what was changed: {outcome}") from error
        try:
            self.journal.put(msgspec.structs.replace(record, is_applied=True))
            self._audit("apply", record, peer, "applied", record.why)
        except OSError as error:
            self._end(record, SERVICE, "the disk is full")
            raise ActError(f"act.state_dir cannot be written: {error.strerror}; undone") from error
        done = Done(record.number, record.action, record.vm, record.before, record.after, "applied", command)
        _log.info("applied", number=done.number, vm=done.vm, action=done.action, after=done.after, **peer._asdict())
        return done

    def _judge(self, record: Record) -> None:
        """Compare a victim's state with the one before, by the same signal."""
        before, watched = record.victim_degradation, self._watch(record)
        if before is None or watched.why:
            return
        now = self.degradation(record.victim, record.victim_signal)
        if now is None:
            return  # the agent is away: nothing is concluded
        is_worse = now.ratio > before * self.limits.worse_ratio
        watched.worse_samples = watched.worse_samples + 1 if is_worse else 0
        if watched.worse_samples >= _WORSE_SAMPLES:
            watched.why = f"the victim is worse: {now.ratio:.3g} times as slow as undisturbed, {before:.3g} before"

    def _undo_due(self, why_over: str = "", is_left: Callable[[Record], bool] = lambda _one: False) -> list[Done]:
        """Undo what is due and was not tried just now, with `why_over` given also what is over or left.

        Once a backend has failed, its other actions wait for the next round: each call may take its whole deadline.
        """
        tried: list[Done] = []
        failed: set[Action] = set()
        for one in self.journal.records:
            watched = self._watch(one)
            if why_over and not watched.why and (is_left(one) or self._is_over(one)):
                watched.why = why_over
            is_due = bool(watched.why) and self.clock.boot_ns() >= watched.retry_at_ns
            if is_due and one.action not in failed:
                tried.append(self._end(one, SERVICE, watched.why))
                if tried[-1].result == "failed":
                    failed.add(one.action)
        return tried

    def _end(self, record: Record, peer: Peer, why: str) -> Done:
        """Undo an action, unless another program has changed the VM meanwhile; forget it. Never raises."""
        watched = self._watch(record)
        try:
            result, detail = self._set_back(record, why)
            self.journal.end(record, self.clock.boot_ns())
        except Exception as error:  # noqa: BLE001 - whatever fails here, others are undone, and this one is retried
            is_known = isinstance(error, (ActError, OSError))
            trouble = str(error) if is_known else repr(error)
            result, detail = "failed", f"{why}; not undone yet: {trouble}"
            watched.why, watched.retry_at_ns = why, self.clock.boot_ns() + _RETRY_NS
            is_new, watched.trouble = watched.trouble != trouble, trouble
            if is_new:
                stack = None if is_known else error
                _log.error("cannot undo; trying again", number=record.number, error=trouble, exc_info=stack)
        else:
            self._watched.pop(record.number, None)
            _log.info(result, number=record.number, vm=record.vm, why=detail, uid=peer.uid, pid=peer.pid)
            is_new = True
        if is_new:
            try:
                self._audit("undo", record, peer, result, detail)
            except OSError as error:
                _log.error("the audit log cannot be written", error=str(error), event_="undo", result=result)
        return Done(record.number, record.action, record.vm, record.after, record.before, result, detail)

    def _set_back(self, record: Record, why: str) -> tuple[str, str]:
        """Undo an action; return the result and its explanation."""
        backend = CpuMax(record.group) if record.group else self.backends[record.action]
        now = backend.read(record.vm)
        if now is None:
            return "gone", f"{why}; there is no such VM now"
        if now == record.before:
            self._wait_until_settled(record, backend)
            return "undone", f"{why}; it was undone already"
        if not backend.is_ours(now, record.after):
            return "left_alone", f"{why}; another program has made it {now!r} meanwhile"
        backend.write(record.vm, record.before)
        return "undone", why

    def _wait_until_settled(self, record: Record, backend: Backend) -> None:
        """Keep a record whose interrupted change may still take effect."""
        if record.is_applied or record.boot_id != self.boot_id:
            return
        watched, now = self._watch(record), self.clock.boot_ns()
        if watched.settled_at_ns is None:
            watched.settled_at_ns = now + round(backend.settles_s * 1e9)
        if now < watched.settled_at_ns:
            settles = f"it is watched for {backend.settles_s:g} s"
            raise ActError(f"setting it was interrupted and may still take effect; {settles}")

    def _is_over(self, record: Record) -> bool:
        return record.boot_id != self.boot_id or self.clock.boot_ns() >= record.until_boot_ns

    def _watch(self, record: Record) -> _Watched:
        return self._watched.setdefault(record.number, _Watched())

    # --- the audit log ---

    def _audit(self, event: str, record: Record | Done, peer: Peer, result: str, why: str) -> None:
        states = (record.after, record.before) if event == "undo" else (record.before, record.after)
        self.audit.write(Line(event, record.number, record.action, record.vm, result, *states, why, *peer))

    @contextlib.contextmanager
    def _refusals_logged(self, event: str, peer: Peer, asked: Apply | None = None) -> Iterator[None]:
        try:
            yield
        except (RefusedError, ActError) as error:
            self.refused(event, peer, str(error), asked)
            raise

    def refused(self, event: str, peer: Peer, why_not: str, asked: Apply | None = None) -> None:
        """Write a refusal to the journal and the audit log, at a limited rate."""
        if not self._allowance.take(self.clock.boot_ns()):
            return
        missed, self._allowance.missed = self._allowance.missed, 0
        if missed:
            why_not = f"{why_not}; and {missed} more refusals before it"
        vm = asked.vm[:64] if asked else ""
        _log.warning("refused", event_=event, vm=vm, why=why_not, uid=peer.uid, pid=peer.pid)
        try:
            self.audit.write(Line(event, 0, asked.action if asked else "", vm, "refused", "", "", why_not, *peer))
        except OSError as error:
            _log.error("the audit log cannot be written", error=str(error), event_=event)
