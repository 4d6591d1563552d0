"""An incident in Alertmanager's webhook format, version "4", one alert in each message.

Whatever takes Alertmanager's webhooks takes these: exactly the same keys. An incident is one alert whose labels stay
the same, so `fingerprint` and `startsAt` identify it; `status` is firing, then resolved. Suspects may change meanwhile,
so they are annotations.
"""

import hashlib
import json
import math
import urllib.parse
from datetime import UTC, datetime
from typing import Any

from central.incidents.words import found_by, named, slow_down
from whitepanda.common.texts import printable
from whitepanda.v1 import fleet_pb2

ALERT_NAME = "WhitepandaContention"
_RECEIVER = "whitepanda"
_NOT_OVER = "0001-01-01T00:00:00Z"  # Go's zero time: what Alertmanager writes for an ongoing alert
_SHOWN = 5  # VMs of each kind by name; the incident has all


def firing(
    incident: fleet_pb2.Incident, incident_url: str, before: str = "", *, silence: fleet_pb2.Silence | None = None
) -> str:
    """Return the message of an ongoing incident, one line of JSON.

    `incident_url` is where people see it, `{id}` is its number; "" for nowhere. `before` is the previous message from
    here, whose labels and beginning stay; "" if there was none. `silence` is the one that kept it quiet until now.
    """
    alert = _alert(incident, incident_url, "firing", _NOT_OVER)
    if silence is not None:
        what = f"silence {silence.id} of {silence.by} is over ({silence.reason}); "
        alert["annotations"]["description"] = printable(what) + alert["annotations"]["description"]
    return _message(alert | (_identity(before) if before else {}), incident_url)


def resolved(incident: fleet_pb2.Incident | None, before: str, incident_url: str, *, ended_unix_ns: int) -> str:
    """Return the message that an incident is over, one line of JSON; `before` is the message from `firing`.

    The incident is None if it is gone (forgotten, or part of an earlier one); then it ended at `ended_unix_ns`.
    """
    if incident is None:
        alert = json.loads(before)["alerts"][0] | {"status": "resolved", "endsAt": _time(ended_unix_ns)}
    else:
        alert = _alert(incident, incident_url, "resolved", _time(incident.last_unix_ns)) | _identity(before)
    return _message(alert, incident_url)


def _identity(before: str) -> dict[str, Any]:
    """Return the parts by which receivers recognise the alert of a message."""
    first = json.loads(before)["alerts"][0]
    return {key: first[key] for key in ("labels", "startsAt", "fingerprint")}


def _message(alert: dict[str, Any], incident_url: str) -> str:
    group = {key: alert["labels"][key] for key in ("alertname", "incident")}
    page = urllib.parse.urlsplit(incident_url)
    key = ", ".join(f'{name}="{value}"' for name, value in group.items())
    message = {
        "version": "4",
        "groupKey": f"{{}}:{{{key}}}",
        "truncatedAlerts": 0,
        "status": alert["status"],
        "receiver": _RECEIVER,
        "groupLabels": group,
        "commonLabels": alert["labels"],
        "commonAnnotations": alert["annotations"],
        "externalURL": f"{page.scheme}://{page.netloc}" if incident_url else "",
        "alerts": [alert],
    }
    return json.dumps(message, allow_nan=False, separators=(",", ":"))


def _alert(incident: fleet_pb2.Incident, incident_url: str, status: str, ends_at: str) -> dict[str, Any]:
    labels = {
        "alertname": ALERT_NAME,
        "severity": "warning",
        "host": printable(incident.host),
        "incident": str(incident.id),
    }
    annotations = {
        "summary": _summary(incident),
        "description": _description(incident),
        "suspect_vm": incident.suspect.name or incident.suspect.vm,
        "suspect_job": incident.suspect.job,
        "slow_down": slow_down(incident.victims[0].slow_down) if incident.victims else "",
    }
    return {
        "status": status,
        "labels": labels,
        # Receivers show them to people; the API has the names as they are.
        "annotations": {name: printable(value) for name, value in annotations.items() if value},
        "startsAt": _time(incident.first_unix_ns),
        "endsAt": ends_at,
        "generatorURL": incident_url.replace("{id}", str(incident.id)),
        # As long as Alertmanager's; to receivers it is just a name.
        "fingerprint": hashlib.sha256(json.dumps(sorted(labels.items())).encode()).hexdigest()[:16],
    }


def _summary(incident: fleet_pb2.Incident) -> str:
    count = len(incident.victims)
    who = "1 VM suffers" if count == 1 else f"{count} VMs suffer"
    worst = f"{', most' if count > 1 else ':'} {_victim(incident.victims[0])}" if count else ""
    suspect = f"first suspect {named(incident.suspect)}" if incident.suspect.vm else "no suspect"
    return f"{who} on host {incident.host}{worst}; {suspect}"


def _description(incident: fleet_pb2.Incident) -> str:
    found = found_by(incident.found_by)
    peak, threshold = incident.peak_mn_cpi, incident.peak_threshold
    above = "" if math.isnan(threshold) else f", threshold {threshold:.3g}"
    parts = [
        f"found {found}" if found else "",
        _listed("victims (slow-down)", [_victim(vm) for vm in incident.victims]),
        _listed(
            "suspects",
            [named(vm) + ("" if math.isnan(vm.peak) else f" (score {vm.peak:.3g})") for vm in incident.suspects],
        ),
        f"{incident.reports} report{'s' if incident.reports != 1 else ''}",
        "" if math.isnan(peak) else f"mean nCPI up to {peak:.3g}{above}",
        f"more: whitepanda incidents show {incident.id}",
    ]
    return "; ".join(part for part in parts if part)


def _victim(vm: fleet_pb2.IncidentVm) -> str:
    return f"{named(vm)} {slow_down(vm.slow_down) or '(slow-down not known)'}"


def _listed(what: str, vms: list[str]) -> str:
    if not vms:
        return ""
    more = f" and {len(vms) - _SHOWN} more" if len(vms) > _SHOWN else ""
    return f"{what}: {', '.join(vms[:_SHOWN])}{more}"


def _time(unix_ns: int) -> str:
    """Return RFC 3339 in UTC, to the millisecond as Alertmanager does."""
    whole, rest = divmod(unix_ns, 10**9)
    text = datetime.fromtimestamp(whole, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{text}.{rest // 10**6:03d}Z"
