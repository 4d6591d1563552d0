"""Generated traces: what their columns are, that a seed decides all, and that each parameter does what it says."""

import numpy as np
import pytest

from central.models.antagonists.slots import TaskSlots
from central.traces.generator.population import ROLES, SLOTS_PER_DAY, Population, make_jobs
from central.traces.generator.presets import PRESETS, preset
from central.traces.generator.settings import SynthSettings, changed, parameters
from central.traces.generator.simulate import Simulation
from tests.support import panda_reference
from whitepanda.common.errors import InputError

#: Nothing moves CPI but contention: no noise, no spread, no rhythm.
EXACT = {
    "days": 1,
    "machines": 6,
    "ls_tasks": 3,
    "batch_tasks": 4,
    "ls_jobs": 3,
    "batch_jobs": 2,
    "antagonists": 3,
    "batch_lifetime_h": 4,
    "transient_share": 0,
    "rare_share": 0,
    "platforms": 1,
    "platform_spread": 0,
    "platform_job_spread": 0,
    "machine_effect": 0,
    "task_effect": 0,
    "load_effect": 0,
    "cpi_noise": 0,
    "machine_noise": 0,
    "corrupted_share": 0,
}


class Run:
    """All days of a trace in memory, as columns of shape (rows,)."""

    def __init__(self, **values):
        self.settings = changed(SynthSettings(machines=10), values)
        population = Population.draw(self.settings)
        self.jobs, self.machines, self.tasks = population.jobs, population.machines, population.tasks
        simulation = Simulation(population)
        self.effects = simulation.effects
        days = list(simulation.days())
        self.slot, self.task, self.usage, self.cpi = (
            np.concatenate([getattr(day, name) for day in days]) for name in ("slot", "task", "usage", "cpi")
        )
        self.job = self.tasks.job[self.task]
        self.role = self.jobs.role[self.job]
        self.places = self.settings.ls_tasks + self.settings.batch_tasks
        self.machine = self.tasks.place[self.task] // self.places
        self.is_sensitive = self.jobs.is_sensitive[self.job]

    def of(self, role):
        """The rows of a role."""
        return self.role == ROLES.index(role)

    def mean_usage(self, role):
        return self.usage[self.of(role)].mean()

    def machine_slot_sums(self, values):
        """Sums over the tasks of each (slot, machine), shape (slots * machines,)."""
        return np.bincount(self.slot * self.settings.machines + self.machine, values)

    def log_cpi_std(self):
        """Spread of the CPI of a sensitive job, the mean over jobs."""
        log = np.log(self.cpi)
        members = np.flatnonzero(np.isin(np.arange(len(self.jobs.job_id)), self.job[self.is_sensitive]))
        return np.mean([log[self.job == k].std() for k in members])


def test_every_place_has_one_task_in_every_slot():
    run = Run(days=3, machines=3)
    slots = 3 * SLOTS_PER_DAY
    assert len(run.slot) == slots * 3 * run.places
    place = run.tasks.place[run.task]
    assert len(np.unique(run.slot * 1_000 + place)) == len(run.slot)
    assert ((run.tasks.begin[run.task] <= run.slot) & (run.slot < run.tasks.end[run.task])).all()
    is_sensitive_place = place % run.places < run.settings.ls_tasks
    assert (is_sensitive_place == run.is_sensitive).all()
    assert (run.usage > 0).all()
    assert (run.cpi > 0).all()


def test_tasks_of_a_job_have_instances_of_their_own():
    run = Run(days=3, machines=3)
    pairs = set(zip(run.tasks.job.tolist(), run.tasks.instance.tolist(), strict=True))
    assert len(pairs) == len(run.tasks.job)


def test_a_seed_decides_all_and_another_seed_is_another_trace():
    one, again, other = Run(days=2), Run(days=2), Run(days=2, seed=2)
    for name in ("slot", "task", "usage", "cpi"):
        assert np.array_equal(getattr(one, name), getattr(again, name))
    assert not np.array_equal(one.cpi[:1000], other.cpi[:1000])
    assert not np.array_equal(one.jobs.job_id, other.jobs.job_id)


def test_more_noise_leaves_who_runs_where_and_what_it_uses_as_it_was():
    one, other = Run(days=1), Run(days=1, cpi_noise=0.5, machine_effect=0.3)
    assert np.array_equal(one.task, other.task)
    assert np.array_equal(one.usage, other.usage)


@pytest.mark.parametrize("form", ["linear", "saturating"])
def test_without_noise_cpi_is_the_formula(form):
    run = Run(**EXACT, form=form, saturation=0.2)
    pressure = run.machine_slot_sums(run.jobs.strength[run.job] * run.usage)
    contention = pressure if form == "linear" else 0.2 * (1 - np.exp(-pressure / 0.2))
    here = contention[run.slot * run.settings.machines + run.machine]
    rise = run.cpi / run.jobs.base_cpi[run.job] / run.jobs.platform_cpi[0, run.job] - 1
    expected = run.jobs.sensitivity[run.job] * here
    ls = run.is_sensitive
    np.testing.assert_allclose(rise[ls], expected[ls], rtol=1e-9, atol=1e-12)


def test_strengths_are_recovered_from_a_trace_without_noise():
    run = Run(**EXACT)
    machine_slots = run.slot * run.settings.machines + run.machine
    usage = np.zeros((machine_slots.max() + 1, len(run.jobs.job_id)))
    np.add.at(usage, (machine_slots, run.job), run.usage)
    ls = run.is_sensitive
    rise = (run.cpi / run.jobs.base_cpi[run.job] - 1) / run.jobs.sensitivity[run.job]
    contention = np.bincount(machine_slots[ls], rise[ls]) / np.bincount(machine_slots[ls])
    batch = np.flatnonzero(~run.jobs.is_sensitive & (usage.sum(axis=0) > 0))
    found = np.linalg.lstsq(usage[:, batch], contention, rcond=None)[0]
    np.testing.assert_allclose(found, run.jobs.strength[batch], rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(run.effects.coefficient[batch], run.jobs.strength[batch], rtol=1e-9)


def test_panda_gives_its_closed_form_where_one_antagonist_is_alone():
    # One sensitive and one batch task per machine: nCPI = (u - mean u) / std u, so A = std(u) / mean(u^2).
    alone = {"batch_jobs": 0, "antagonists": 1, "ls_jobs": 1, "ls_tasks": 1, "batch_tasks": 1}
    run = Run(**EXACT | alone)
    found = panda_reference.fit(
        TaskSlots(
            machine=run.machine,
            slot=run.slot,
            task=run.task,
            job=run.jobs.job_id[run.job],
            platform=np.zeros(len(run.job), np.int8),
            latency_sensitive=run.is_sensitive,
            usage=run.usage,
            cpi=run.cpi,
        )
    )
    used = run.usage[~run.is_sensitive]
    antagonist = run.jobs.job_id[run.jobs.role == ROLES.index("antagonist")]
    value = found.coefficients.value[found.coefficients.job == antagonist]
    np.testing.assert_allclose(value, used.std() / np.mean(used**2), rtol=1e-6)


def test_saturation_lowers_the_true_coefficients():
    linear, saturating = Run(**EXACT), Run(**EXACT, form="saturating", saturation=0.1)
    hurting = linear.jobs.role == ROLES.index("antagonist")
    assert (saturating.effects.coefficient[hurting] < linear.effects.coefficient[hurting]).all()
    assert (linear.effects.coefficient[~hurting] == 0).all()


def test_antagonists_only_have_strength_unless_a_background_is_asked_for():
    jobs = make_jobs(changed(SynthSettings(), {"companions": 4, "burners": 3}))
    assert (jobs.strength[jobs.role == ROLES.index("antagonist")] > 0).all()
    assert (jobs.strength[jobs.role != ROLES.index("antagonist")] == 0).all()
    jobs = make_jobs(changed(SynthSettings(), {"background_effect": 0.01, "burners": 3, "ls_antagonists": 2}))
    assert (jobs.strength[jobs.role == ROLES.index("ordinary")] > 0).all()
    assert (jobs.strength[jobs.role == ROLES.index("burner")] == 0).all()
    assert np.flatnonzero(jobs.strength[jobs.is_sensitive]).tolist() == [0, 1]


def test_burners_use_more_and_antagonists_as_reported():
    even = {"usage_job_spread": 0, "burners": 6, "companions": 4, "days": 1}
    run = Run(**even, burner_usage=5, antagonist_usage=2)
    ordinary = run.mean_usage("ordinary")
    assert run.mean_usage("burner") == pytest.approx(5 * ordinary, rel=0.15)
    assert run.mean_usage("antagonist") == pytest.approx(2 * ordinary, rel=0.15)
    assert run.mean_usage("companion") == pytest.approx(ordinary, rel=0.15)


def _beside(run):
    """Share of the companion's task slots with its antagonist on the machine, and how their usages correlate."""
    rider = int(np.flatnonzero(run.jobs.leader >= 0)[0])
    codes = run.slot * run.settings.machines + run.machine
    share = np.isin(codes[run.job == rider], codes[run.job == run.jobs.leader[rider]]).mean()
    log_usage = np.zeros((run.slot.max() + 1, run.settings.machines * run.places))
    log_usage[run.slot, run.tasks.place[run.task]] = np.log(run.usage)
    leader_place = run.tasks.leader_place[run.task]
    with_leader = leader_place >= 0
    theirs = log_usage[run.slot[with_leader], leader_place[with_leader]]
    return share, np.corrcoef(np.log(run.usage[with_leader]), theirs)[0, 1]


def test_companions_ride_along_and_use_cpu_together():
    parameter = {"days": 3, "antagonists": 1, "companions": 1, "usage_task_spread": 0, "popularity_exponent": 0}
    parameter |= {"batch_jobs": 100, "rare_share": 0, "transient_share": 0, "batch_diurnal_load": 0}
    together, correlation = _beside(Run(**parameter, ride_along=1, companion_usage_correlation=0.9))
    assert together > 0.95
    assert correlation > 0.75
    apart, _ = _beside(Run(**parameter, ride_along=0.1, companion_usage_correlation=0))
    assert apart < 0.7


def test_corrupted_and_missing_samples_come_at_their_rates():
    clean, dirty = Run(days=1), Run(days=1, corrupted_share=0.01, corrupted_factor=50, missing_cpi_share=0.2)
    missing = np.isnan(dirty.cpi)
    assert missing.mean() == pytest.approx(0.2, abs=0.01)
    ratio = dirty.cpi[~missing] / clean.cpi[~missing]
    assert (ratio > 7).mean() == pytest.approx(0.0075, abs=0.001)  # three in four go up
    assert (ratio < 1 / 7).mean() == pytest.approx(0.0025, abs=0.001)


@pytest.mark.parametrize(
    ("parameter", "value"),
    [
        ("cpi_noise", 0.4),
        ("machine_noise", 0.3),
        ("machine_effect", 0.4),
        ("platform_spread", 0.5),
        ("task_effect", 0.4),
        ("daily_drift", 0.6),
        ("own_usage_effect", -0.5),
        ("antagonist_effect", 1.0),
    ],
)
def test_knobs_of_spread_widen_a_jobs_cpi(parameter, value):
    base = {"days": 2, "machines": 8, "cpi_noise": 0.05, "machine_effect": 0.02, "corrupted_share": 0, "platforms": 4}
    assert Run(**base | {parameter: value}).log_cpi_std() > 1.5 * Run(**base).log_cpi_std()


def test_noise_has_memory_and_tails():
    white = {**EXACT, "antagonist_effect": 0, "cpi_noise": 0.2, "ls_lifetime_h": 1e4, "noise_tail": 1e6}
    for memory_h, expected in ((0, 0.0), (1, np.exp(-1 / 12))):
        run = Run(**white, noise_memory_h=memory_h)
        first = run.tasks.place[run.task] == 0
        noise = np.log(run.cpi[first])
        assert np.corrcoef(noise[1:], noise[:-1])[0, 1] == pytest.approx(expected, abs=0.2)
    heavy = Run(**white | {"noise_tail": 3, "noise_memory_h": 0})
    noise = (np.log(heavy.cpi / heavy.jobs.base_cpi[heavy.job]))[heavy.is_sensitive]
    assert np.mean((noise / noise.std()) ** 4) > 5  # of a normal distribution it is 3


def test_an_effect_may_be_a_presence_a_threshold_or_late():
    presence = Run(**EXACT, usage_dependence=0)
    pressure = presence.machine_slot_sums((presence.jobs.strength * presence.jobs.usage)[presence.job])
    rise = presence.cpi / presence.jobs.base_cpi[presence.job] - 1
    ls = presence.is_sensitive
    here = presence.jobs.sensitivity[presence.job] * pressure[presence.slot * 6 + presence.machine]
    np.testing.assert_allclose(rise[ls], here[ls], rtol=1e-9, atol=1e-12)

    above = Run(**EXACT, effect_threshold=1e2)
    assert above.cpi[ls] == pytest.approx(above.jobs.base_cpi[above.job][ls])

    late, prompt = Run(**EXACT, effect_memory_h=2), Run(**EXACT)
    steps = [np.abs(np.diff(run.cpi[run.tasks.place[run.task] == 0])).mean() for run in (late, prompt)]
    assert steps[0] < 0.5 * steps[1]


def test_batch_usage_is_reported_lower_while_all_are_slowed_down():
    plain, throttled = Run(**EXACT), Run(**EXACT, throttling=2.0)
    ls = plain.is_sensitive
    np.testing.assert_array_equal(throttled.cpi, plain.cpi)
    np.testing.assert_array_equal(throttled.usage[ls], plain.usage[ls])
    pressure = plain.jobs.strength[plain.job] * plain.usage
    others = plain.machine_slot_sums(pressure)[plain.slot * 6 + plain.machine] - pressure
    np.testing.assert_allclose(throttled.usage[~ls], (plain.usage / (1 + 2 * others))[~ls], rtol=1e-9)
    assert throttled.usage[~ls].sum() < 0.999 * plain.usage[~ls].sum()


def test_what_usage_does_may_come_and_go():
    plain, coming = Run(**EXACT), Run(**EXACT, intensity_noise=1.0)
    np.testing.assert_array_equal(coming.usage, plain.usage)
    ls = plain.is_sensitive
    rise = [run.cpi[ls] / run.jobs.base_cpi[run.job][ls] - 1 for run in (plain, coming)]
    assert np.corrcoef(rise)[0, 1] < 0.95
    assert rise[1].mean() == pytest.approx(rise[0].mean(), rel=0.5)


def test_transient_jobs_run_within_their_days_only():
    run = Run(days=10, machines=4, transient_share=0.8, companions=3)
    inside = (run.jobs.first_slot[run.job] <= run.slot) & (run.slot < run.jobs.end_slot[run.job])
    assert inside.all()
    batch = np.flatnonzero(~run.jobs.is_sensitive)
    length = (run.jobs.end_slot - run.jobs.first_slot)[batch]
    assert np.mean(length <= 5 * SLOTS_PER_DAY + 1) == pytest.approx(0.8, abs=0.15)


def test_presets_are_sound_and_every_knob_is_described():
    assert {"paper", "paper-saturating", "quiet", "other-1", "other-2", "other-3", "other-4"} <= set(PRESETS)
    assert preset("paper-saturating").form == "saturating"
    assert all(text for _, _, text in parameters())
    with pytest.raises(InputError, match=r"unknown preset 'x'; known: paper, "):
        preset("x")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"days": 0}, r"synth parameter days: must be 1 to 400 \(value 0\)"),
        ({"seed": -1}, r"synth parameter seed: must be 0 to 2147483648 \(value -1\)"),
        ({"cpi_noise": float("nan")}, r"synth parameter cpi_noise: must be 0 to 3 \(value nan\)"),
        ({"form": "cubic"}, r"synth parameter form: must be linear or saturating \(value 'cubic'\)"),
        ({"days": "two"}, r"synth parameter days: must be a whole number \(value 'two'\)"),
        ({"cpi_noise": "x"}, r"synth parameter cpi_noise: must be a number \(value 'x'\)"),
        ({"nois": 1}, r"no synth parameter 'nois'; `whitepanda trace presets` lists them"),
        ({"batch_jobs": 0, "antagonists": 0}, r"synth: no batch jobs; raise"),
        ({"companions": 1, "antagonists": 0}, r"synth parameter companions: they need antagonists"),
        ({"ls_jobs": 2, "ls_antagonists": 3}, r"synth parameter ls_antagonists: at most ls_jobs, 2 \(value 3\)"),
    ],
)
def test_wrong_knobs_are_refused_in_one_line(values, message):
    with pytest.raises(InputError, match=message) as refused:
        changed(SynthSettings(), values)
    assert "\n" not in str(refused.value)
