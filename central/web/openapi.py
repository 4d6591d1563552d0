"""The fleet API as JSON: which path is which method, messages as JSON objects, and the OpenAPI document.

Fields and their order come from the protocol's descriptors, their descriptions from the comments in fleet.proto and
agent.proto. Times are integers in nanoseconds; an unknown number is null; enumerations are words in lower case, without
their prefix.
"""

import math
import re
from dataclasses import dataclass
from functools import cache
from importlib import metadata, resources
from typing import Any, Literal

import msgspec
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message

from central.api import limits
from central.api.requests import wrong, wrong_field
from whitepanda.v1 import fleet_pb2

_SERVICE = fleet_pb2.DESCRIPTOR.services_by_name["Fleet"]
_NUMBERS = {FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT}
#: Parameters that a method cannot do without, by method and name.
_NEEDED = {
    ("GetIncident", "id"),
    ("GetIncidentTimeline", "id"),
    ("AcknowledgeIncident", "reason"),
    ("AddIncidentNote", "text"),
    ("CreateSilence", "reason"),
    ("CreateSilence", "end_unix_ns"),
    ("GetVmHistory", "vm"),
    ("Search", "text"),
    ("PlanObservation", "margin_percent"),
    ("PredictRuntime", "job"),
    ("GetJob", "job"),
    ("GetHostTimeline", "host"),
    ("QuerySeries", "metrics"),
    ("TopVms", "metric"),
}
#: Why there is no answer, by status.
_REFUSALS = {
    400: "The request is wrong: a parameter that is not known here, a value out of its range, or two that contradict",
    403: "The client's certificate is none of an operator or responder, or revoked; or another site's page asks",
    404: "There is nothing of that name or number",
    413: f"The request's body is longer than {limits.MAX_HTTP_BYTES:,} bytes",
    415: "The request's body is not application/json",
    408: "The request did not come in time",
    410: "The version is not kept any more, or there is no model of runtimes",
    429: "Too many questions, or too many of this kind, wait",
    431: f"The request's line and headers are longer than {limits.MAX_HTTP_BYTES:,} bytes",
    500: "Central failed; its log says why",
    503: "Too many connections are open, or something that central needs does not answer; try again later",
}
_EVERYWHERE = (400, 403, 408, 429, 431, 500, 503)
_OPERATOR = (
    "A client certificate of central's CA with a name in central.operators. Where central.http_listen is a loopback "
    "address there is no TLS, and every program of that machine may ask."
)
_MAX_UINT = {FieldDescriptor.CPPTYPE_UINT32: 2**32 - 1, FieldDescriptor.CPPTYPE_UINT64: 2**64 - 1}


@dataclass(frozen=True, slots=True)
class Route:
    """A request for `path` calls a method of `whitepanda.v1.Fleet`; names in braces are fields of its request.

    The other fields are parameters, of a POST the members of a JSON object.
    """

    path: str
    method: str
    summary: str
    refusals: tuple[int, ...] = ()  # statuses of its own, beside those that every path has
    verb: Literal["GET", "POST"] = "GET"

    @property
    def request(self) -> Descriptor:
        """The request's message."""
        return _SERVICE.methods_by_name[self.method].input_type

    @property
    def response(self) -> Descriptor:
        """The response's message."""
        return _SERVICE.methods_by_name[self.method].output_type


# fmt: off
ROUTES = (
    Route("/v1/status", "GetFleetStatus", "Totals of ingest, lake and builds"),
    Route("/v1/hosts", "ListHosts", "Every host that ever connected, by name"),
    Route("/v1/job-statistics", "ListJobStatistics", "CPI statistics by job and platform", (410,)),
    Route("/v1/coefficients", "ListCoefficients", "Antagonist coefficients, the largest first", (404, 410)),
    Route("/v1/events", "ListEvents", "What began or ended on hosts' VMs, the last that came first", (404,)),
    Route("/v1/incidents", "ListIncidents", "When VMs of a host suffered, the last that began first", (404,)),
    Route("/v1/incidents/{id}", "GetIncident", "One incident with its evidence and its suspect's recurrence", (404,)),
    Route("/v1/incidents/{id}/timeline", "GetIncidentTimeline", "What else changed around an incident", (404,)),
    Route("/v1/incidents/{id}/acknowledgement", "AcknowledgeIncident",
          "Take an incident on: it is not sent again", (404, 413, 415), "POST"),
    Route("/v1/incidents/{id}/notes", "AddIncidentNote", "Write a note to an incident", (404, 413, 415), "POST"),
    Route("/v1/silences", "ListSilences", "Silences of incidents, the last one made first"),
    Route("/v1/silences", "CreateSilence", "Keep incidents quiet for a time", (404, 413, 415), "POST"),
    Route("/v1/silences/{id}/end", "EndSilence", "End a silence before its time", (404, 413, 415), "POST"),
    Route("/v1/audit", "ListAudit", "Who acknowledged, noted and silenced what, the last first"),
    Route("/v1/suspect-jobs", "ListSuspectJobs", "How often, and on how many hosts, a job was suspected first", (404,)),
    Route("/v1/vms", "ListFleetVms", "VMs that run, filtered and sorted"),
    Route("/v1/search", "Search", "VMs, hosts, jobs and projects by a part of a name; also VMs that are gone"),
    Route("/v1/vms/{vm}/history", "GetVmHistory", "Windows, events and incidents of a VM over at most a day", (404,)),
    Route("/v1/job-loadings", "ListJobLoadings", "Loading vectors of the jobs that ran lately, by name"),
    Route("/v1/placement", "RankHosts", "Hosts for a new VM, where it would suffer least first", (404,)),
    Route("/v1/observation-plan", "PlanObservation", "How many VMs of which jobs to observe for a margin", (404,)),
    Route("/v1/comparison", "CompareSides", "Whether the fleet became faster: two sides of the lake", (404,)),
    Route("/v1/runtime", "PredictRuntime", "How long a job would run on a host now, or on a platform", (404, 410)),
    Route("/v1/overview", "GetOverview", "The fleet at a glance: who suffers now, contended hosts, antagonists"),
    Route("/v1/job", "GetJob", "A job's CPI by platform, its coefficient then and now, where it runs", (404,)),
    Route("/v1/host-timeline", "GetHostTimeline", "CPI and CPU usage of a host's VMs, and its incidents", (404,)),
    Route("/v1/series", "QuerySeries", "Steps of metrics of VMs, hosts or jobs over any time", (404,)),
    Route("/v1/top-vms", "TopVms", "The VMs with the greatest mean or maximum of a metric over a time"),
    Route("/v1/data-health", "GetDataHealth",
          "What the lake has by day, which hosts send nothing, and which are held back"),
    Route("/v1/facts", "GetFacts", "What a VM, with its host and last changes, or a host is, or was at a time", (404,)),
    Route("/v1/vm-facts", "ListFacts", "What the VMs of a host or project are, or were at a time"),
)
# fmt: on


def read_request(route: Route, values: list[tuple[str, str]]) -> Message:
    """Make the method's request of query and path parameters; raises ApiError for a wrong one."""
    request: Any = getattr(fleet_pb2, route.request.name)()
    fields = route.request.fields_by_name
    seen: dict[str, str] = {}
    for name, value in values:
        if name not in fields:
            known = ", ".join(fields) or "none"
            raise wrong(f"no parameter {name[:80]!r} here; known: {known}")
        if fields[name].is_repeated:
            given = getattr(request, name)
            given.append(_read_value(fields[name], value))
            if len(given) > _max_items(fields[name]):
                raise wrong_field(name, f"takes at most {_max_items(fields[name]):,} values by HTTP")
        else:
            if name in seen:
                raise wrong_field(name, f"is given twice (values {seen[name][:80]!r}, {value[:80]!r})")
            seen[name] = value
            setattr(request, name, _read_value(fields[name], value))
    return request  # type: ignore[no-any-return] # a message, whatever its class


def read_body(route: Route, path: list[tuple[str, str]], body: bytes) -> Message:
    """Make the method's request of path parameters and a body, a JSON object; raises ApiError for a wrong one."""
    try:
        members = msgspec.json.decode(body, type=dict[str, str | int | bool])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise wrong(f"the body must be a JSON object of texts, integers and true or false: {error}") from error
    for name, value in members.items():
        field = route.request.fields_by_name.get(name)
        if field is not None and isinstance(value, str) != (field.cpp_type == FieldDescriptor.CPPTYPE_STRING):
            kind = "a text" if field.cpp_type == FieldDescriptor.CPPTYPE_STRING else "an integer"
            raise wrong_field(name, f"must be {kind} (value {str(value)[:80]!r})")
    texts = {name: str(value) if isinstance(value, str | int) else value for name, value in members.items()}
    return read_request(route, [*texts.items(), *path])


def _max_items(field: FieldDescriptor) -> int:
    return min(limits.max_items(field), limits.MAX_HTTP_ITEMS)


def _read_value(field: FieldDescriptor, text: str) -> Any:
    value = f"(value {text[:80]!r})"
    if field.enum_type is not None:
        words = {_word(field.enum_type, value.number): value.number for value in field.enum_type.values}
        if text not in words:
            raise wrong_field(field.name, f"must be one of {', '.join(words)} {value}")
        return words[text]
    if field.cpp_type in _MAX_UINT:
        most = limits.max_integer(field)
        if not re.fullmatch(r"[0-9]{1,20}", text) or int(text) > most:
            raise wrong_field(field.name, f"must be an integer from 0 to {most} {value}")
        return int(text)
    if field.cpp_type in _NUMBERS:
        if not re.fullmatch(r"[-+]?[0-9]*\.?[0-9]+(e[-+]?[0-9]{1,3})?", text, re.IGNORECASE | re.ASCII):
            raise wrong_field(field.name, f"must be a number {value}")
        return float(text)
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        if text not in ("true", "false"):
            raise wrong_field(field.name, f"must be true or false {value}")
        return text == "true"
    return text


def to_json(message: Message) -> dict[str, Any]:
    """Return a message as a JSON object with every field; absent messages and optional numbers are null."""
    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if _is_map(field):
            found[field.name] = dict(value)
        elif field.is_repeated:
            found[field.name] = [_json_value(field, one) for one in value]
        elif field.has_presence and not message.HasField(field.name):
            found[field.name] = None
        else:
            found[field.name] = _json_value(field, value)
    return found


def _is_map(field: Any) -> bool:
    """Whether it is a map; all here are of texts by texts."""
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def _json_value(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        return to_json(value)
    if field.enum_type is not None:
        return _word(field.enum_type, value)
    if field.cpp_type in _NUMBERS:
        return value if math.isfinite(value) else None
    return value


def _word(kind: EnumDescriptor, number: int) -> str:
    """Return an enumeration's word without its prefix, such as "victim"; the number where it is a newer agent's."""
    value = kind.values_by_number.get(number)
    prefix = re.sub(r"(?<!^)(?=[A-Z])", "_", kind.name).upper() + "_"
    return str(number) if value is None else value.name.removeprefix(prefix).lower()


def document() -> dict[str, Any]:
    """Return the OpenAPI 3.1 document."""
    schemas: dict[str, Any] = {
        "Error": {
            "type": "object",
            "required": ["error"],
            "properties": {
                "error": {"type": "string", "description": "One line: what, and what to do"},
                "field": {"type": "string", "description": "The parameter that it is about, if it is about one"},
                "problem": {
                    "type": "string",
                    "description": "`error` without the parameter's name, if it begins with it",
                },
            },
        }
    }
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        _add_schema(schemas, route.response)
        refusals = {*_EVERYWHERE, *route.refusals}
        is_read = route.verb == "GET"
        known = {"304": {"description": "The caller has this answer already, by the ETag in If-None-Match"}}
        inline = [field for field in route.request.fields if is_read or _in_path(route, field)]
        paths.setdefault(route.path, {})[route.verb.lower()] = {
            "operationId": route.method,
            "summary": route.summary,
            "parameters": [_parameter(route, field) for field in inline],
            **({} if is_read else {"requestBody": _body(route)}),
            "responses": {
                "200": _answer("The answer", route.response.name),
                **(known if is_read else {}),
                **{str(code): _answer(_REFUSALS[code], "Error") for code in sorted(refusals)},
            },
            "security": [{"operator": []}, {}],
        }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "whitepanda fleet API",
            "version": metadata.version("whitepanda"),
            "description": "What central knows of the fleet. Times are in nanoseconds since 1970; null is not known. "
            "Lists come in pages: next_page_token is the page_token of the next one, and empty on the last.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"operator": {"type": "mutualTLS", "description": _OPERATOR}},
        },
    }


def _answer(description: str, schema: str) -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}
    return {"description": description, "content": content}


def _in_path(route: Route, field: FieldDescriptor) -> bool:
    return f"{{{field.name}}}" in route.path


def _body(route: Route) -> dict[str, Any]:
    """Return the description of a POST's body: what is a parameter of a GET are members here."""
    members = {}
    for field in route.request.fields:
        if not _in_path(route, field):
            parameter = _parameter(route, field)
            members[field.name] = {**parameter["schema"], "description": parameter.get("description", "")}
    needed = [name for name in members if (route.method, name) in _NEEDED]
    schema = {"type": "object", "properties": members, "required": needed, "additionalProperties": False}
    return {"required": True, "content": {"application/json": {"schema": schema}}}


def _parameter(route: Route, field: FieldDescriptor) -> dict[str, Any]:
    in_path = _in_path(route, field)
    found: dict[str, Any] = {"name": field.name, "in": "path" if in_path else "query", "required": in_path}
    note = notes().get((route.request.name, field.name))
    if note:
        found["description"] = note
    schema = _schema(field, is_parameter=True)
    if (route.method, field.name) in _NEEDED:
        found["required"] = True
        if schema["type"] == "string":
            schema["minLength"] = 1
    if field.is_repeated:
        schema = {"type": "array", "items": schema, "maxItems": _max_items(field)}
    return {**found, "schema": schema}


def _schema(field: FieldDescriptor, *, is_parameter: bool) -> dict[str, Any]:
    kinds = {FieldDescriptor.CPPTYPE_BOOL: "boolean", FieldDescriptor.CPPTYPE_STRING: "string"}
    found: dict[str, Any] = {"type": kinds.get(field.cpp_type, "integer")}
    if field.message_type is not None:
        found = {"$ref": f"#/components/schemas/{field.message_type.name}"}
    elif field.enum_type is not None:
        # An agent newer than central may know more words.
        words = [_word(field.enum_type, one.number) for one in field.enum_type.values]
        found = {"type": "string", "enum" if is_parameter else "examples": words}
    elif field.cpp_type in _MAX_UINT:
        most = limits.max_integer(field) if is_parameter else _MAX_UINT[field.cpp_type]
        found |= {"minimum": 0, "maximum": most}
    elif field.cpp_type in _NUMBERS:
        found = _number_schema(limits.NUMBERS[field.name]) if is_parameter else {"type": ["number", "null"]}
    elif is_parameter and found["type"] == "string":
        pattern = limits.TOKEN_PATTERN if field.name == "page_token" else limits.TEXT_PATTERN
        found |= {"maxLength": limits.max_length(field), "pattern": pattern}
    return found


def _number_schema(numbers: limits.Numbers) -> dict[str, Any]:
    low = "exclusiveMinimum" if numbers.is_open else "minimum"
    found = {low: numbers.low, "maximum": numbers.high}
    return {"type": "number", "anyOf": [{"const": 0}, found]} if numbers.or_zero else {"type": "number", **found}


def _add_schema(schemas: dict[str, Any], message: Descriptor) -> None:
    if message.name in schemas:
        return
    schemas[message.name] = {}  # while those within it are made
    properties = {}
    for field in message.fields:
        if field.message_type is not None and not _is_map(field):
            _add_schema(schemas, field.message_type)
        schema = _schema(field, is_parameter=False)
        if _is_map(field):
            schema = {"type": "object", "additionalProperties": {"type": "string"}}
        elif field.is_repeated:
            schema = {"type": "array", "items": schema}
        elif field.message_type is not None:
            schema = {"oneOf": [schema, {"type": "null"}]}
        elif field.has_presence and schema["type"] != ["number", "null"]:
            schema = {**schema, "type": [schema["type"], "null"]}
        note = notes().get((message.name, field.name))
        properties[field.name] = {**schema, "description": note} if note else schema
    required = [field.name for field in message.fields]
    schemas[message.name] = {"type": "object", "required": required, "properties": properties}


@cache
def notes() -> dict[tuple[str, str], str]:
    """Return the comment beside each field in fleet.proto and agent.proto, by (message, field)."""
    found: dict[tuple[str, str], str] = {}
    for name in ("agent.proto", "fleet.proto"):
        message = ""
        for line in resources.files("whitepanda.v1").joinpath(name).read_text(encoding="utf-8").splitlines():
            if begun := re.match(r"message (\w+)", line):
                message = begun[1]
            elif field := re.match(r"\s+[\w. <>,]+ (\w+) = \d+;\s*// (.*)", line):
                found[message, field[1]] = field[2]
    return found
