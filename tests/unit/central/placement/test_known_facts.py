"""Sizes and quotas from the facts' store: all pages, units, what is not known, and a store that does not answer."""

from types import SimpleNamespace

from central.incidents.store import StoreError
from central.placement.capacity import HostSize, Sizes, VmSize
from central.placement.known_facts import quotas_at, sizes_at


class Facts:
    """2,500 VMs, of which each third has a quota and each fifth nothing, and three hosts."""

    def vms_at(self, unix_ns, *, after, limit):
        assert unix_ns == 77
        places = [("h1" if k < 1200 else "h2", f"vm-{k:05}", k) for k in range(2500)]
        return [self.vm(*place) for place in places if place[:2] > after][:limit]

    def vm(self, host, vm, k):
        vcpus = None if k % 5 == 0 else 4
        cores = 2.5 if k % 3 == 0 else vcpus
        return SimpleNamespace(host=host, vm=vm, vcpus=vcpus, memory_bytes=k, cores=cores)

    def hosts_at(self, _unix_ns, *, after, limit):
        cards = (("eth0", 10_000_000_000), ("eth1", 25_000_000_000), ("eth2", None))
        disks = (("sda", 1, True), ("sdb", 1, False))
        every = [
            SimpleNamespace(host="h1", cpus=32, memory_bytes=1 << 37, nics=cards, disks=disks),
            SimpleNamespace(host="h2", cpus=None, memory_bytes=None, nics=(("eth0", None),), disks=()),
        ]
        return [host for host in every if host.host > after][:limit]


def test_sizes_of_all_pages():
    found = sizes_at(Facts(), 77)
    assert (len(found.vms), found.problem) == (2500, "")
    assert (found.vms["vm-00005"], found.vms["vm-02499"]) == (VmSize(None, 5), VmSize(4, 2499))
    assert found.hosts == {"h1": HostSize(32, 1 << 37, 35e9 / 8, 2), "h2": HostSize()}


def test_a_quota_is_the_limit_or_the_vcpus():
    found = quotas_at(Facts(), 77)
    assert (found["vm-00003"], found["vm-00004"], found["vm-00000"]) == (2.5, 4.0, 2.5)
    assert "vm-00005" not in found


def test_a_store_that_does_not_answer_or_is_not_there():
    class Away(Facts):
        def hosts_at(self, *_at, **_page):
            raise StoreError("gone")

    assert sizes_at(Away(), 77) == Sizes(problem="facts of hosts and VMs do not answer: gone")
    assert (sizes_at(None, 77), quotas_at(None, 77)) == (Sizes(), {})
