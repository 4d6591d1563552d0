"""Pseudonyms in place of names: settings, samples and messages of the local API, field by field.

Every text field is decided on by its type. What is not known to hold whitepanda's own words is replaced or left out, so
no text has to be searched for names.
"""

import hashlib
import hmac
import re
import secrets
import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec
from google.protobuf.message import Message

from collector.base import SourceSample, VmIdentity, VmSample

REDACTED = "(redacted)"

#: Facts of VMs whose keys are the same on all hosts; other keys may have names in them.
_FACT = re.compile(r"(?:nova|pve):[a-z_]+|title|description|name|job|latency_sensitive|mac")
#: Settings that are never shown: central's names, and addresses that may have credentials.
_SECRET_SETTINGS = {"uplink.address", "uplink.server_name", "sources.libvirt.uri", "sources.ovs.database"}
#: Fields of messages that are never shown: central's address, and errors of gRPC that name it.
_SECRET_FIELDS = {"UplinkStatus.address", "UplinkStatus.last_error", "UplinkStatus.last_refusal"}
#: Fields of messages that hold names, with the kind of pseudonym.
_NAMES = {
    "HostStatus.host": "host",
    "ListVmsResponse.host": "host",
    "VmSummary.uuid": "uuid",
    "VmSummary.name": "vm",
    "VmSummary.job": "job",
    "VmSummary.epoch": "epoch",
    "VmSummary.owner": "owner",
    "CloudWhite.culprits": "vm",
    "Suspect.uuid": "uuid",
    "Suspect.name": "vm",
    "Suspect.job": "job",
}
#: Fields of messages that hold whitepanda's own words. The texts of all others are left out.
_WORDS = {
    "HostStatus.agent_version",
    "HostStatus.platform",
    "SourceStatus.name",
    "SourceStatus.state",
    "UplinkStatus.state",
    "Metric.name",
    "Metric.source",
    "VmSummary.state",
    "VmSummary.verdict",
    "Degradation.cannot_tell",
}


class Pseudonyms:
    """Pseudonyms under a random key that is not kept: a name has the same one throughout a bundle.

    Args:
        enabled: whether names are replaced at all; what is secret is left out in any case.

    """

    def __init__(self, *, enabled: bool = True) -> None:
        self.enabled = enabled
        self._secret = secrets.token_bytes(32)

    def of(self, kind: str, name: str) -> str:
        """Return the pseudonym of a name: `KIND-DIGEST`, of kind "uuid" another UUID; "" stays."""
        if not name:
            return ""
        if kind == "uuid":
            name = name.lower()
        digest = hmac.new(self._secret, name.encode("utf-8", "surrogateescape"), hashlib.sha256).hexdigest()
        return str(uuid.UUID(digest[:32])) if kind == "uuid" else f"{kind}-{digest[:10]}"

    # -- settings

    def settings(self, section: msgspec.Struct, prefix: str = "") -> dict[str, Any]:
        """Return all settings of a section; texts other than the default are left out."""
        shown: dict[str, Any] = {}
        for field in msgspec.structs.fields(section):
            key, value = f"{prefix}{field.name}", getattr(section, field.name)
            if isinstance(value, msgspec.Struct):
                shown[field.name] = self.settings(value, f"{key}.")
            elif isinstance(value, tuple) and value and isinstance(value[0], msgspec.Struct):
                shown[field.name] = [self.settings(one) for one in value]
            else:
                is_text = field.type in (str, tuple[str, ...])
                is_hidden = key in _SECRET_SETTINGS or (self.enabled and is_text)
                shown[field.name] = REDACTED if is_hidden and value != field.default else msgspec.to_builtins(value)
        return shown

    # -- messages

    def hide(self, message: Message) -> None:
        """Replace the names in a message of the local API and in those inside it."""
        for field, value in message.ListFields():
            key = f"{message.DESCRIPTOR.name}.{field.name}"
            if field.type == field.TYPE_MESSAGE:
                for one in [value] if isinstance(value, Message) else value:
                    self.hide(one)
            elif field.type == field.TYPE_STRING and isinstance(value, str):
                setattr(message, field.name, self._shown(key, value))
            elif field.type == field.TYPE_STRING:
                value[:] = [self._shown(key, one) for one in value]

    def _shown(self, key: str, value: str) -> str:
        if key in _SECRET_FIELDS:
            return REDACTED
        if not self.enabled or key in _WORDS:
            return value
        return self.of(_NAMES[key], value) if key in _NAMES else REDACTED

    # -- samples

    def sample(self, sample: SourceSample) -> SourceSample:
        """Return a sample with pseudonyms for its names; it replays to the same numbers."""
        vms = {self.of("uuid", uuid): self._vm(vm) for uuid, vm in sample.vms.items()}
        return replace(sample, vms=vms, inventory=sample.inventory and tuple(map(self._identity, sample.inventory)))

    def _vm(self, vm: VmSample) -> VmSample:
        rdt = vm.rdt
        if rdt is not None and rdt.owner != "whitepanda":
            rdt = replace(rdt, owner=self.of("group", rdt.owner))
        disks, interfaces = self._by_device(vm.disks), self._by_device(vm.interfaces)
        return replace(vm, epoch=self.of("epoch", vm.epoch), disks=disks, interfaces=interfaces, rdt=rdt)

    def _by_device(self, counters: Mapping[str, Any] | None) -> dict[str, Any] | None:
        return None if counters is None else {self.of("dev", device): item for device, item in counters.items()}

    def _identity(self, identity: VmIdentity) -> VmIdentity:
        of, kinds = self.of, {"device": "dev", "mac": "mac", "port_id": "port"}
        interfaces = (
            replace(one, **{name: of(kind, getattr(one, name)) for name, kind in kinds.items()})
            for one in identity.interfaces
        )
        return replace(
            identity,
            uuid=of("uuid", identity.uuid),
            name=of("vm", identity.name),
            epoch=of("epoch", identity.epoch),
            facts={
                key if _FACT.fullmatch(key) else self.of("key", key): self.of("fact", value)
                for key, value in identity.facts.items()
            },
            disks=tuple(replace(disk, target=self.of("dev", disk.target)) for disk in identity.disks),
            interfaces=tuple(interfaces),
        )
