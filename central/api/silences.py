"""What people do about incidents: acknowledge, note, silence; the audit of it; what else changed around an incident.

The caller is the name of a verified certificate. Where there is none, on central's own machine, callers say who they
are, and the audit marks that as unverified.
"""

import uuid
from typing import Any

from central.api.context import Context
from central.api.incidents import no_incident
from central.api.limits import MAX_TIME_UNIX_NS
from central.api.names import check_names
from central.api.requests import read_page, unknown, wrong, wrong_field
from central.incidents.changes import MAX_CHANGES
from central.incidents.silences import MATCHERS, KeyTakenError
from central.incidents.store import IncidentQuery
from whitepanda.common.texts import printable, several_named
from whitepanda.v1 import fleet_pb2

MAX_DAYS = 30  # that a silence may last
_CLOCK_NS = 60 * 10**9  # that a caller's clock may be wrong
_DAY_NS = 86_400 * 10**9


async def acknowledge(
    context: Context, request: fleet_pb2.AcknowledgeIncidentRequest, caller: str
) -> fleet_pb2.Incident:
    """Take an incident on: it is not sent again. Whoever was first stays."""
    who, reason = _who(request, caller), _text(request, "reason")
    store, now = context.history.store, context.clock_unix_ns()
    if not await context.history.ask(store.acknowledge, _number(request), who=who, reason=reason, unix_ns=now):
        raise no_incident(request)
    found = await context.history.ask(store.get, _number(request))
    if found is None:  # it became part of an earlier one this very moment
        raise no_incident(request)
    (incident,) = await context.history.mark([found.incident])
    return incident


async def add_note(context: Context, request: fleet_pb2.AddIncidentNoteRequest, caller: str) -> fleet_pb2.IncidentNote:
    """Write a note to an incident."""
    named = {"who": _who(request, caller), "text": _text(request, "text"), "key": _key(request)}
    store, now = context.history.store, context.clock_unix_ns()
    found = await context.history.ask(store.add_note, _number(request), unix_ns=now, **named)
    if found is None:
        raise no_incident(request)
    return found


async def create_silence(context: Context, request: fleet_pb2.CreateSilenceRequest, caller: str) -> fleet_pb2.Silence:
    """Keep incidents quiet for a time."""
    now = context.clock_unix_ns()
    values: dict[str, Any] = {name: getattr(request, name) for name in MATCHERS}
    if not any(values.values()):
        raise wrong(
            "host, vm, job and project are missing: give at least one, as a silence of everything is none", "host"
        )
    start, end = _span(request, now)
    values |= {"who": _who(request, caller), "reason": _text(request, "reason"), "key": _key(request)}
    await check_names(context, request, "host", "vm", "job", "project")
    vm, name = _vm(context, request.vm)
    values |= {"vm": vm, "name": name, "start_unix_ns": start, "end_unix_ns": end}
    try:
        return await context.history.ask(context.history.store.create_silence, values, now_unix_ns=now)
    except KeyTakenError:
        raise wrong_field("key", f"is another silence's (value {request.key[:80]!r}); make a new one") from None


async def end_silence(context: Context, request: fleet_pb2.EndSilenceRequest, caller: str) -> fleet_pb2.Silence:
    """End a silence before its time."""
    who, store = _who(request, caller), context.history.store
    number, now = _number(request), context.clock_unix_ns()
    found = await context.history.ask(store.end_silence, number, who=who, now_unix_ns=now)
    if found is None:
        raise unknown(f"no silence {number}; it was over long ago, or never was", "id")
    return found


async def list_silences(context: Context, request: fleet_pb2.ListSilencesRequest) -> fleet_pb2.ListSilencesResponse:
    """Silences, the last one made first; of a project those of it or of its VMs."""
    page = read_page(request, "silences", (0,), repr((request.current_only, request.project)))
    found = await context.history.ask(
        context.history.store.list_silences,
        limit=page.size + 1,
        before_id=page.place[0] or MAX_TIME_UNIX_NS,
        now_unix_ns=context.clock_unix_ns(),
        current_only=request.current_only,
        project=request.project,
        vms=await _silenced_vms(context, request.project),
    )
    shown, token = page.cut(found, lambda last: (last.id,))
    return fleet_pb2.ListSilencesResponse(silences=shown, next_page_token=token)


async def list_audit(context: Context, request: fleet_pb2.ListAuditRequest) -> fleet_pb2.ListAuditResponse:
    """Who did what, the last first; of a project about its incidents and silences."""
    page = read_page(request, "audit", (0,), request.project)
    found = await context.history.ask(
        context.history.store.audit,
        limit=page.size + 1,
        before_id=page.place[0] or MAX_TIME_UNIX_NS,
        project=request.project,
        vms=await _silenced_vms(context, request.project),
    )
    shown, token = page.cut(found, lambda last: (last.id,))
    return fleet_pb2.ListAuditResponse(entries=shown, next_page_token=token)


async def _silenced_vms(context: Context, project: str) -> list[str]:
    """Return the VMs of a project that silences name."""
    if not project:
        return []
    named = await context.history.ask(context.history.store.silenced_vms)
    return await context.history.ask(context.facts.of_project, project, named)


async def get_timeline(context: Context, request: fleet_pb2.GetIncidentTimelineRequest) -> fleet_pb2.IncidentTimeline:
    """What else changed around an incident."""
    now, number, project = context.clock_unix_ns(), _number(request), request.project
    if project and not await context.history.find(IncidentQuery(number=number, project=project), 1):
        raise no_incident(request)
    found = await context.history.ask(context.history.store.changes_of, number, now)
    if found is None:
        raise no_incident(request)
    host, since, until = found.host, found.since_unix_ns, found.until_unix_ns
    of_vms = await context.history.ask(context.facts.changes, host, since, until, limit=MAX_CHANGES + 1)
    changes = sorted([*found.changes, *of_vms], key=lambda one: one.unix_ns)
    del found.changes[:]
    found.changes.extend(changes[-MAX_CHANGES:])
    found.changes_left_out = found.changes_left_out or len(changes) > MAX_CHANGES
    return found


def _who(request: Any, caller: str) -> str:
    """Return who asks, as it is kept: a certificate's name, or a word that nobody has verified."""
    word = printable(request.operator.strip())
    if not caller and not word:
        raise wrong_field("operator", "is missing: say who you are, as this connection has no certificate")
    if not caller:
        return f"{word} (unverified)"
    return f"{caller} as {word}" if word and word != caller else caller


def _text(request: Any, field: str) -> str:
    text = printable(getattr(request, field).strip())
    if not text:
        raise wrong_field(field, "is missing: write one line for who reads it later")
    return text


def _key(request: Any) -> str:
    return request.key or uuid.uuid4().hex


def _number(request: Any) -> int:
    return min(int(request.id), MAX_TIME_UNIX_NS)


def _span(request: fleet_pb2.CreateSilenceRequest, now: int) -> tuple[int, int]:
    if not request.end_unix_ns:
        raise wrong_field("end_unix_ns", f"is missing: a silence must end, at most {MAX_DAYS} days after it starts")
    if request.start_unix_ns and request.start_unix_ns < now - _CLOCK_NS:
        ago = f"{(now - request.start_unix_ns) / 1e9:.0f} s ago"
        raise wrong_field("start_unix_ns", f"must be now (0) or later (value {request.start_unix_ns}, {ago})")
    start, end = max(request.start_unix_ns, now), request.end_unix_ns
    if not start < end <= start + MAX_DAYS * _DAY_NS + _CLOCK_NS:
        value = f"value {end}, {(end - start) / 1e9:.0f} s after it"
        raise wrong_field("end_unix_ns", f"must be after the start and at most {MAX_DAYS} days later ({value})")
    return start, end


def _vm(context: Context, text: str) -> tuple[str, str]:
    """Return a VM's UUID and name; the text itself and "" if it is not known. A name of several is refused."""
    found = context.registry.vm_names.find(text) if text else []
    if len(found) > 1:
        raise wrong(several_named(text, found), "vm")
    if not found:
        return text, ""
    return found[0], next(iter(context.registry.vm_names.by_host(found[0]).values()), "")
