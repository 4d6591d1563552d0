"""An incident as Alertmanager tells webhooks of an alert: version "4" of its format, one alert in each message.

Whatever takes Alertmanager's webhooks takes these: the same keys, none beside them. An incident is one alert whose
labels stay the same while it lasts, so `fingerprint` and `startsAt` say which; `status` is firing, then resolved.
"""

from __future__ import annotations

import hashlib
import json
import math
import urllib.parse
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from whitepanda.v1 import fleet_pb2

__all__ = ["ALERT_NAME", "firing", "resolved"]

ALERT_NAME = "WhitepandaContention"
_RECEIVER = "whitepanda"
_NOT_OVER = "0001-01-01T00:00:00Z"  # Go's zero time: what Alertmanager writes for an alert that goes on
_SHOWN = 5  # VMs of each kind by name; the incident has all


def firing(incident: fleet_pb2.Incident, incident_url: str) -> str:
    """Return the message that an incident goes on.

    Args:
        incident: with its VMs, the worst first.
        incident_url: where people see it, `{id}` is its number; "" where there is nothing.

    Returns:
        JSON, one line.

    """
    return _message(_alert(incident, incident_url, "firing", _NOT_OVER), incident_url)


def resolved(incident: fleet_pb2.Incident | None, told: str, incident_url: str, *, ended_unix_ns: int) -> str:
    """Return the message that it is over.

    Args:
        incident: as it is now; None where it is gone: forgotten, or part of an earlier one.
        told: the message from `firing`.
        incident_url: as there.
        ended_unix_ns: when it ended, of one that is gone.

    Returns:
        JSON, one line. Labels and beginning are those that were told.

    """
    first = json.loads(told)["alerts"][0]
    if incident is None:
        alert = first | {"status": "resolved", "endsAt": _time(ended_unix_ns)}
    else:
        alert = _alert(incident, incident_url, "resolved", _time(incident.last_unix_ns))
        alert |= {key: first[key] for key in ("labels", "startsAt", "fingerprint")}
    return _message(alert, incident_url)


def _message(alert: dict[str, Any], incident_url: str) -> str:
    labels = alert["labels"]
    group = {key: labels[key] for key in ("alertname", "incident")}
    key = ", ".join(f'{name}="{value}"' for name, value in group.items())
    message = {
        "version": "4",
        "groupKey": f"{{}}:{{{key}}}",
        "truncatedAlerts": 0,
        "status": alert["status"],
        "receiver": _RECEIVER,
        "groupLabels": group,
        "commonLabels": labels,
        "commonAnnotations": alert["annotations"],
        "externalURL": _origin(incident_url),
        "alerts": [alert],
    }
    return json.dumps(message, allow_nan=False, separators=(",", ":"))


def _alert(incident: fleet_pb2.Incident, incident_url: str, status: str, ends_at: str) -> dict[str, Any]:
    labels = {
        "alertname": ALERT_NAME,
        "severity": "warning",
        "host": incident.host,
        "suspect_job": incident.suspect_job,  # "" has no meaning to Prometheus but that there is none
        "incident": str(incident.id),
    }
    labels = {name: value for name, value in labels.items() if value}
    return {
        "status": status,
        "labels": labels,
        "annotations": {"summary": _summary(incident), "description": _description(incident)},
        "startsAt": _time(incident.first_unix_ns),
        "endsAt": ends_at,
        "generatorURL": incident_url.replace("{id}", str(incident.id)),
        "fingerprint": _fingerprint(labels),
    }


def _summary(incident: fleet_pb2.Incident) -> str:
    who = f"{len(incident.victims)} VM{'s' if len(incident.victims) != 1 else ''}"
    if len(incident.victims) == 1:
        who = f"VM {_name(incident.victims[0])}"
    whom = f"job {incident.suspect_job} is suspected first" if incident.suspect_job else "nobody is suspected"
    verb = "suffers" if len(incident.victims) == 1 else "suffer"
    return f"{who} {verb} from contention on host {incident.host}: {whom}"


def _description(incident: fleet_pb2.Incident) -> str:
    peak = f"{incident.peak_mn_cpi:.3g}, threshold {incident.peak_threshold:.3g}"
    parts = [
        f"mean nCPI was up to {peak}, in {incident.reports} slot{'s' if incident.reports != 1 else ''}",
        _listed("victims (nCPI)", incident.victims),
        _listed("suspects (score)", incident.suspects),
        f"evidence: whitepanda incidents show {incident.id}",
    ]
    return "; ".join(part for part in parts if part)


def _listed(what: str, vms: Iterable[fleet_pb2.IncidentVm]) -> str:
    every = list(vms)
    if not every:
        return ""
    named = [
        f"{_name(vm)} of job {vm.job} ({'not known' if math.isnan(vm.peak) else f'{vm.peak:.3g}'})"
        for vm in every[:_SHOWN]
    ]
    more = f" and {len(every) - _SHOWN} more" if len(every) > _SHOWN else ""
    return f"{what}: {', '.join(named)}{more}"


def _name(vm: fleet_pb2.IncidentVm) -> str:
    return vm.name or vm.vm


def _origin(incident_url: str) -> str:
    parts = urllib.parse.urlsplit(incident_url)
    return f"{parts.scheme}://{parts.netloc}" if incident_url else ""


def _time(unix_ns: int) -> str:
    """Return RFC 3339 in UTC, to the millisecond as Alertmanager's."""
    whole, rest = divmod(unix_ns, 10**9)
    text = datetime.fromtimestamp(whole, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{text}.{rest // 10**6:03d}Z"


def _fingerprint(labels: dict[str, str]) -> str:
    """Return 16 hexadecimal digits, as Alertmanager's have; to receivers they are but a name."""
    text = json.dumps(sorted(labels.items()))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
