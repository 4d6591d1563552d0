"""Events: what began and ended of each VM, as it was decided; bounded, counted, no oftener than they should be."""

from agent.antagonists.decide_victims import Decisions
from agent.config import AgentConfig, AgentSection, CloudWhiteSection
from tests.unit.agent.agent_fakes import UNIX0, S
from tests.unit.agent.cloud_white_fakes import INFLICTS, QUIET, SUFFERS, ToldModel, host_vm, rates_of
from tests.unit.agent.detection.test_cloud_white import Host as Judged


class Host(Judged):
    """A host whose detector says what it is reported, and whose VMs are decided on, second by second."""

    def __init__(self, *models, **settings) -> None:
        super().__init__(*models, **settings)
        config = AgentConfig(agent=AgentSection(), cloud_white=CloudWhiteSection(**settings))
        self.decisions = Decisions(config, self.it, None)
        self.events = self.decisions.events

    def tick(self, seconds: int = 1) -> None:
        for _ in range(seconds):
            super().tick()
            self.decisions.tick(self.vms, self.second * S, UNIX0 + self.second * S)


def test_events_tell_begin_and_end_with_the_worst_of_it():
    host = Host(ToldModel("gips"))
    host.tick(5)
    assert host.events.take() == ()  # unknown, then steady: nobody's news
    host.says.update({"web": SUFFERS, "bully": INFLICTS})
    host.tick()
    begun = host.events.take()
    assert [(e.vm, e.before, e.behaviour, e.lasted_ns) for e in begun] == [
        ("bully", "steady", "inflicting", 5 * S),
        ("web", "steady", "victim", 5 * S),
    ]
    web = begun[1]
    assert (web.name, web.job, web.epoch, web.latency_sensitive) == ("name-web", "job", "e1", True)
    assert (web.unix_ns, web.culprits, web.reason) == (UNIX0 + 106 * S, ("bully",), SUFFERS[1])
    assert web.degradation.ratio == 1.4
    assert [(e.signal, e.value, e.expected, e.threshold) for e in web.evidence] == [("ipc", 0.5, 1.0, 0.9)]
    host.vms[1] = host_vm("web", rates=rates_of(gips=2.5))
    host.tick(10)
    host.vms[1] = host_vm("web", rates=rates_of(gips=1.3))
    host.tick(5)
    host.says.clear()
    host.tick()
    ended = host.events.take()
    assert [(e.vm, e.before, e.behaviour, e.lasted_ns) for e in ended] == [
        ("bully", "inflicting", "steady", 16 * S),
        ("web", "victim", "steady", 16 * S),
    ]
    assert ended[1].degradation.ratio == 2.5
    assert host.events.of("web") == (web, ended[1])


def test_a_vm_that_flickers_is_reported_of_twice_per_interval_and_its_last_word_counts():
    host = Host(event_interval_s=10.0)
    host.tick()
    reported = []
    for second in range(40):
        host.says["web"] = SUFFERS if second % 2 == 0 else QUIET
        host.tick()
        reported += [(host.second, event.behaviour) for event in host.events.take()]
    ends = [(113, "steady"), (125, "steady"), (137, "steady")]
    begins = [(102, "victim"), (114, "victim"), (126, "victim"), (138, "victim")]
    assert reported == sorted(begins + ends)
    host.tick(30)
    assert [event.behaviour for event in host.events.take()] == ["steady"]


def test_an_event_says_when_it_was_and_a_victim_what_made_it_one():
    """Not when it was noted: an end waits for the interval, a victim for nothing."""
    host = Host(ToldModel("gips"), event_interval_s=10.0)
    host.vms[1] = host_vm("web", rates=rates_of(gips=1.1))
    host.says["web"] = SUFFERS
    host.tick(2)
    host.vms[1] = host_vm("web", rates=rates_of(gips=1.8))
    host.tick()
    host.vms[1] = host_vm("web", rates=rates_of(gips=1.3))
    host.tick(2)
    host.says["web"] = QUIET
    host.tick(20)
    assert [
        (event.behaviour, (event.unix_ns - UNIX0) // S, event.lasted_ns // S, event.degradation.ratio)
        for event in host.events.take()
    ] == [("affected", 101, 0, 1.1), ("victim", 103, 2, 1.8), ("steady", 106, 3, 1.8)]


def test_a_victim_that_goes_or_starts_again_ends():
    host = Host(event_interval_s=3600.0)
    host.says["web"] = SUFFERS
    host.tick(2)
    host.vms[1] = host_vm("web", epoch="e2")
    host.says["web"] = QUIET
    host.tick()
    host.says["web"] = SUFFERS
    host.tick()
    host.vms.pop()
    host.tick()
    found = [(e.epoch, e.before, e.behaviour, e.reason) for e in host.events.take()]
    assert found == [
        ("e1", "unknown", "victim", SUFFERS[1]),
        ("e1", "victim", "unknown", "the VM was restarted"),
        ("e2", "steady", "victim", SUFFERS[1]),
        ("e2", "victim", "unknown", "the VM is gone from this host"),
    ]
    host.tick()
    assert not host.events.waiting
    assert not host.decisions.has_news


def test_events_that_nobody_takes_are_bounded_and_counted():
    host = Host(recent_events=7)
    host.vms = [host_vm(f"vm{n}") for n in range(600)]
    host.says.update({f"vm{n}": SUFFERS for n in range(600)})
    host.tick()
    assert host.events.dropped == 600 - 512
    assert len(host.events.take()) == 512
    assert sum(len(host.events.of(f"vm{n}")) for n in range(600)) == 7


def test_an_affected_vm_that_becomes_a_victim_is_reported_of_and_the_worst_of_all_is_kept():
    """Its model's lower end is 0.9 of the estimate: above 1.05 from 1.17 on."""
    host = Host(ToldModel("gips"), event_interval_s=0.0)
    host.vms[1] = host_vm("web", rates=rates_of(gips=1.1))
    host.says["web"] = SUFFERS
    host.tick(3)
    host.vms[1] = host_vm("web", rates=rates_of(gips=1.8))
    host.tick(3)
    host.vms[1] = host_vm("web", rates=rates_of(gips=1.04))
    host.tick(3)
    host.says.clear()
    host.tick()
    found = host.events.take()
    assert [(e.before, e.behaviour, e.lasted_ns // S, e.degradation.ratio) for e in found] == [
        ("unknown", "affected", 0, 1.1),
        ("affected", "victim", 3, 1.8),
        ("victim", "affected", 3, 1.04),
        ("affected", "steady", 3, 1.8),
    ]
    assert [e.found_by for e in found] == [("host",), ("host",), ("host",), ()]
    assert [e.culprits for e in found] == [("bully",), ("bully",), ("bully",), ()]
    assert "the slow-down may be less than 1.05x" in found[2].reason


def test_a_vm_that_pauses_suffers_no_more():
    host = Host()
    host.says["web"] = SUFFERS
    host.tick()
    host.vms[1].identity.state = "paused"
    host.tick(60)
    assert [(e.before, e.behaviour) for e in host.events.take()] == [("unknown", "victim"), ("victim", "unknown")]


def test_events_of_a_vm_are_kept_for_people_whoever_takes_them():
    host = Host(recent_events=3, event_interval_s=0.0)
    host.tick()
    for second in range(4):
        host.says["web"] = SUFFERS if second % 2 == 0 else QUIET
        host.tick()
        host.events.take()
    assert [e.behaviour for e in host.events.of("web")] == ["steady", "victim", "steady"]
    assert host.events.of("bully") == ()
