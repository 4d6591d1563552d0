"""What `whitepanda act` does, by its own journal: central gets it as facts of VMs, with the times of begin and end."""

import asyncio

import msgspec
import pytest

from agent.act.records import AMOUNTS, Undo
from agent.config import ActSection, AgentConfig, AgentSection
from agent.facts.changes import FactChanges
from agent.facts.limits import UNITS, ActLimits, Limited
from agent.failures import Failures
from tests.unit.agent.act_fakes import OPERATOR, OTHER, VM, FakeBackend, asked, make
from tests.unit.agent.act_fakes import FakeClock as ActClock
from tests.unit.agent.agent_fakes import S
from tests.unit.agent.facts.test_fact_changes import Host


class Limiting(Host):
    """A host with the service, over its real journal; both have the same time."""

    def __init__(self, folder) -> None:
        super().__init__(folder)
        self.act_folder = folder / "act"
        self.act_clock = ActClock()
        self.act_clock.unix = self.clock.unix
        self.actor = make(self.act_folder, FakeBackend(), clock=self.act_clock)
        self.restart_agent()

    def restart_agent(self, boot="boot-1") -> None:
        config = AgentConfig(AgentSection(state_dir=str(self.act_folder.parent)))
        self.changes = FactChanges(config, self.clock, Failures(lambda: None, self.clock))
        self.changes._act = ActLimits(str(self.act_folder), self.clock, self.act_clock.boot_ns, boot)
        self.changes._limited = self.changes._act.read()

    def wait(self, seconds: float) -> None:
        self.clock.advance(round(seconds * S))
        self.act_clock.advance(seconds)

    def read(self) -> list:
        """What is sent once the agent has read the journal."""
        self.changes._limited = self.changes._act.read()
        return self.changes.take(self.vms.values())


@pytest.fixture
def host(tmp_path):
    made = Limiting(tmp_path)
    made.set(VM)
    made.set(OTHER)
    assert [list(facts.limits) for facts in made.read()] == [[], []]
    made.wait(10)
    return made


def test_begin_and_end_are_sent_with_their_times(host):
    host.actor.apply(asked(why="incident 7"), OPERATOR)
    began = host.clock.unix
    host.wait(12)
    (facts,) = host.read()
    assert (facts.vm, list(facts.limits), facts.unix_ns) == (VM, ["cap-cpu 2 cores: incident 7"], began)
    assert host.read() == []
    host.wait(20)
    host.actor.undo(Undo(), OPERATOR)
    ended = host.clock.unix
    host.wait(7)
    (facts,) = host.read()
    assert (facts.vm, list(facts.limits), facts.unix_ns) == (VM, [], ended)
    assert host.read() == []


def test_what_the_agent_was_away_for_is_as_it_is_now(host):
    host.actor.apply(asked(vm=OTHER, action="limit-bandwidth", amount=20), OPERATOR)
    host.wait(100)
    host.restart_agent()
    now = {facts.vm: (list(facts.limits), facts.unix_ns) for facts in host.changes.take(host.vms.values())}
    assert now == {VM: ([], host.clock.unix), OTHER: (["limit-bandwidth 20 percent"], host.clock.unix)}


def test_a_limit_that_was_not_applied_is_none(host):
    host.actor.apply(asked(), OPERATOR)
    (record,) = host.actor.journal.records
    host.actor.journal.put(msgspec.structs.replace(record, is_applied=False))
    assert host.read() == []


def test_times_are_never_before_what_was_sent_and_never_later_than_now(host):
    host.set(VM, quota=2.0)
    host.actor.apply(asked(), OPERATOR)
    host.wait(10)
    assert len(host.read()) == 1
    last = host.clock.unix
    host.actor.undo(Undo(), OPERATOR)
    host.set(VM, quota=None)
    host.changes._vms[VM].unix_ns = last + 5 * S  # its clock was ahead then
    host.wait(1)
    assert [facts.unix_ns for facts in host.read()] == [host.clock.unix]


def test_an_end_of_another_boot_has_no_time(host):
    host.actor.apply(asked(), OPERATOR)
    host.actor.undo(Undo(), OPERATOR)
    reader = ActLimits(str(host.act_folder), host.clock, host.act_clock.boot_ns, "boot-2")
    assert reader.read() == {}
    reader = ActLimits(str(host.act_folder), host.clock, host.act_clock.boot_ns, "boot-1")
    assert reader.read() == {VM: Limited((), host.clock.unix)}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"records": 1}', "\x00", '{"records": [{"vm": "x"}]}', "[" * 100_000])
def test_a_journal_that_is_damaged_changes_nothing(host, text):
    host.actor.apply(asked(), OPERATOR)
    assert len(host.read()) == 1
    (host.act_folder / "journal.json").write_text(text)
    assert host.read() == []
    (host.act_folder / "journal.json").unlink()
    assert [list(facts.limits) for facts in host.read()] == [[]]


def test_what_people_wrote_is_fit_for_a_terminal_and_bounded(host):
    host.actor.apply(asked(why="x" * 300), OPERATOR)
    path = host.act_folder / "journal.json"
    path.write_bytes(path.read_bytes().replace(b"xxx", b"a\\u001b[31mxxx", 1))
    ((limit,),) = [facts.limits for facts in host.read()]
    assert limit.startswith("cap-cpu 2 cores: a\\x1b[31mxxx")
    assert len(limit) == 256


async def test_the_journal_of_the_configuration_is_read_while_the_agent_runs(host):
    config = AgentConfig(
        AgentSection(state_dir=str(host.act_folder.parent)), act=ActSection(state_dir=str(host.act_folder))
    )
    host.changes = FactChanges(config, host.clock, Failures(lambda: None, host.clock))
    host.actor.apply(asked(), OPERATOR)
    running = asyncio.create_task(host.changes.run())
    async with asyncio.timeout(30):
        while VM not in host.changes._limited:
            await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert host.changes._limited[VM].limits == ("cap-cpu 2 cores",)


def test_units_are_those_of_act():
    assert UNITS == AMOUNTS
