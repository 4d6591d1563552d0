"""Facts of VMs and hosts, at a time."""

from dataclasses import asdict

from central.api.context import Context
from central.api.requests import read_page, unknown, wrong, wrong_field
from central.facts.records import HostRecord, VmRecord
from whitepanda.common.texts import several_named
from whitepanda.v1 import agent_pb2, fleet_pb2

_SAME_NAMES = 20  # enough to name some of them


async def get_facts(context: Context, request: fleet_pb2.GetFactsRequest) -> fleet_pb2.Facts:
    """What a VM, and its host, or a host was at a time; of a VM its last versions too.

    Of a project: only of a VM that is or was of it, or a host that one is or was on.
    """
    if bool(request.vm) == bool(request.host):
        raise wrong_field("vm", "must be given, or host, and not both")
    ask, store = context.history.ask, context.facts
    at_unix_ns = request.at_unix_ns or context.clock_unix_ns()
    found = fleet_pb2.Facts()
    host, project = request.host, request.project
    if host and project and not await ask(store.has_project, project, host=host):
        raise unknown(f"no facts are known of host {host[:80]!r} with a VM of project {project[:80]!r}", "host")
    if request.vm:
        versions = await ask(store.history, request.vm)
        vm = request.vm if versions else await vm_named(context, request.vm, project)
        if vm and project and not await ask(store.has_project, project, vm=vm):
            raise unknown(f"no facts are known of VM {request.vm[:80]!r} of project {project[:80]!r}", "vm")
        # After a migration the host that a VM came from may not have said yet that it is gone.
        then = await ask(store.vms_at, at_unix_ns, vm=vm) if vm else ()
        if then:
            newest = max(then, key=lambda record: record.from_unix_ns)
            found.vm.CopyFrom(_vm(newest))
            host = newest.host
        if vm:
            found.versions.extend(map(_vm, versions or await ask(store.history, vm)))
    for record in await ask(store.hosts_at, at_unix_ns, host=host, limit=1) if host else ():
        found.host.CopyFrom(_host(record))
    if not found.ListFields():
        raise unknown(f"no facts are known of {(request.vm or request.host)[:80]!r} at that time")
    return found


async def vm_named(context: Context, name: str, project: str = "") -> str:
    """Return the UUID of the one VM of a name, and of a project, "" without one. Raises ApiError if several have it."""
    vms = await context.history.ask(context.facts.named, name, _SAME_NAMES, project)
    if len(vms) > 1:
        raise wrong(several_named(name, vms), "vm")
    return vms[0] if vms else ""


async def list_facts(context: Context, request: fleet_pb2.ListFactsRequest) -> fleet_pb2.ListFactsResponse:
    """The VMs that were there at a time, by host and UUID."""
    page = read_page(request, "facts", ("", ""), f"{request.host}/{request.project}/{request.at_unix_ns}")
    host, vm = page.place
    rows = await context.history.ask(
        context.facts.vms_at,
        request.at_unix_ns or context.clock_unix_ns(),
        host=request.host,
        project=request.project,
        after=(str(host), str(vm)),
        limit=page.size + 1,
    )
    shown, token = page.cut(rows, lambda record: (record.host, record.vm))
    return fleet_pb2.ListFactsResponse(vms=map(_vm, shown), next_page_token=token)


def _vm(record: VmRecord) -> fleet_pb2.VmVersion:
    fields = asdict(record)
    host, until = fields.pop("host"), fields.pop("until_unix_ns")
    facts = agent_pb2.VmFacts(unix_ns=fields.pop("from_unix_ns"), **fields)
    return fleet_pb2.VmVersion(host=host, facts=facts, until_unix_ns=until)


def _host(record: HostRecord) -> fleet_pb2.HostVersion:
    facts = agent_pb2.HostFacts(
        unix_ns=record.from_unix_ns,
        cpus=record.cpus,
        memory_bytes=record.memory_bytes,
        caches=[agent_pb2.CacheDomain(first_cpu=cpu, size_bytes=size, cpus=cpus) for cpu, size, cpus in record.llc],
        network_cards=[agent_pb2.NetworkCard(name=name, bits_per_s=rate) for name, rate in record.nics],
        disks=[agent_pb2.DiskFacts(name=name, size_bytes=size, rotational=turns) for name, size, turns in record.disks],
        manager=record.manager,
        labels=record.labels,
        is_received_time=record.is_received_time,
    )
    return fleet_pb2.HostVersion(host=record.host, facts=facts, until_unix_ns=record.until_unix_ns)
