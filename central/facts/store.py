"""Facts in the database of incident history. All methods block and may be called from any thread."""

from collections.abc import Sequence
from functools import partial

from central.facts import tables
from central.facts.changes import changes
from central.facts.records import HostRecord, VmRecord
from central.incidents.store import IncidentStore
from central.validation.facts import FactRow
from whitepanda.v1.fleet_pb2 import IncidentChange


class FactStore:
    """Versions of facts. Every method raises `central.incidents.store.StoreError` if the database does not answer."""

    def __init__(self, database: IncidentStore) -> None:
        self._database = database
        database.prepare(tables.METADATA)

    def take(self, rows: Sequence[FactRow]) -> int:
        """Keep versions that are new, and return how many are."""
        return self._database.write(lambda connection: tables.take(connection, rows))

    def prune(self, before_unix_ns: int) -> int:
        """Delete versions that were last said before a time, some at once; return how many."""
        return self._database.write(lambda connection: tables.prune(connection, before_unix_ns))

    def vms_at(
        self,
        unix_ns: int,
        *,
        vm: str = "",
        host: str = "",
        project: str = "",
        after: tuple[str, str] = ("", ""),
        limit: int = 1000,
    ) -> list[VmRecord]:
        """Return the VMs that were there at a time, each as it was then, by host and UUID after a place."""
        ask = partial(tables.vms_at, unix_ns=unix_ns, vm=vm, host=host, project=project, after=after, limit=limit)
        return self._database.read(ask)

    def projects_at(self, unix_ns: int, *, limit: int) -> dict[tuple[str, str], str]:
        """Return the projects of the VMs that were there at a time, by host and UUID; those without are left out."""
        return self._database.read(lambda connection: tables.projects_at(connection, unix_ns, limit))

    def vms_of(
        self,
        projects: Sequence[str],
        since_unix_ns: int,
        until_unix_ns: int,
        limit: int,
        *,
        hosts: Sequence[str] = (),
        vms: Sequence[str] = (),
    ) -> list[str]:
        """Return the UUIDs of the VMs that were of one of some projects at some time in [since, until), in order.

        `hosts`: only those that were on one of these then; `vms`: only of these.
        """
        times = (since_unix_ns, until_unix_ns)
        return self._database.read(
            lambda connection: tables.vms_of(connection, projects, *times, limit, hosts=hosts, vms=vms)
        )

    def projects_of(
        self, vms: Sequence[str], projects: Sequence[str], since_unix_ns: int, until_unix_ns: int
    ) -> dict[str, str]:
        """Return which of some projects each of some VMs was of in [since, until), the last one."""
        return self._database.read(
            lambda connection: tables.projects_of(connection, vms, projects, since_unix_ns, until_unix_ns)
        )

    def has_project(self, project: str, *, vm: str = "", host: str = "", job: str = "") -> bool:
        """Whether a VM is or was of a project: any that agrees with the UUID, the host and the job that are given."""
        return self._database.read(partial(tables.has_project, project=project, vm=vm, host=host, job=job))

    def of_project(self, project: str, vms: Sequence[str]) -> list[str]:
        """Return those of some VMs, each by its UUID or name, that are or were of a project."""
        return self._database.read(lambda connection: tables.of_project(connection, project, vms))

    def hosts_at(self, unix_ns: int, *, host: str = "", after: str = "", limit: int = 1000) -> list[HostRecord]:
        """Return hosts as they were at a time, by name after a place."""
        return self._database.read(partial(tables.hosts_at, unix_ns=unix_ns, host=host, after=after, limit=limit))

    def history(self, vm: str) -> list[VmRecord]:
        """Return the last hundred versions of a VM, on whichever host, newest first."""
        return self._database.read(lambda connection: tables.history(connection, vm))

    def changes(self, host: str, since_unix_ns: int, until_unix_ns: int, *, limit: int) -> list[IncidentChange]:
        """Return the last `limit` changes of a host and its VMs in a time, the oldest first."""
        return self._database.read(
            lambda connection: changes(connection, host, since_unix_ns, until_unix_ns, limit=limit)
        )

    def project(self, host: str, vm: str) -> str:
        """Return the project of a VM (UUID) by what its host said last; "" if it is not known."""
        return next((one.project for one in self.history(vm) if one.host == host), "")

    def named(self, name: str, limit: int, project: str = "") -> list[str]:
        """Return the UUIDs of VMs, also of gone ones, that have or had a name, in any case; see `tables.named`."""
        return self._database.read(lambda connection: tables.named(connection, name, limit, project))

    def find(self, text: str, limit: int, project: str = "") -> list[VmRecord]:
        """Return the last version of VMs, also gone ones, by a part of the name, job, project or host, or by UUID."""
        return self._database.read(lambda connection: tables.find(connection, text, limit, project))

    def find_groups(self, text: str, limit: int, project: str = "") -> list[tuple[str, str]]:
        """Return jobs and projects, also those whose VMs are all gone, by a part of the name: ("job", name)."""
        return self._database.read(lambda connection: tables.find_groups(connection, text, limit, project))
