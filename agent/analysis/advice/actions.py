"""Ranked actions against contention, with evidence, expected effect and commands.

The effect of less CPU comes from the linear model that also scores the suspects (`effects`). For cache, memory
bandwidth and migrations no coefficient exists: their effect is unknown, with the reason.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import islice

from agent.analysis.advice import effects
from agent.analysis.advice.commands import act_command, cap_commands, cap_notes, migration, migration_notes
from agent.analysis.advice.effects import effect_of_less, is_left_alone, is_small_part, unknown_effect
from agent.analysis.advice.recommendations import (
    MIN_QUOTA_US,
    QUOTA_PERIOD_US,
    Action,
    Command,
    Effect,
    Recommendation,
    Situation,
    Suspect,
    Victim,
)

MAX_RECOMMENDATIONS = 8

_MAX_SUSPECTS = 3  # for which actions are made
_FIRST_STEP = 0.5  # share of its usage that a suspect keeps if the necessary cut is unknown
_CACHE_SHARE = 0.25  # share of all VMs' occupancy that is evidence against a suspect
_BANDWIDTH_SHARE = 0.5  # the same of memory bandwidth


def recommend(situation: Situation) -> tuple[Recommendation, ...]:
    """Rank the possible actions, the best first; () without a victim.

    Order: 1. actions expected to be enough; 2. actions with an unknown effect; 3. actions that are almost enough, or
    against a VM that the host itself found to inflict; 4. doing nothing; 5. actions that take CPU from a VM and leave
    most of the contention. Within 1 to 3: the suspect with the higher score first, then the action that disturbs less
    (a limit before a migration). If no action against a suspect ranks above doing nothing, doing nothing is first.
    Suspects that are left alone (`is_left_alone`) are neither capped nor migrated.
    """
    if not situation.victims:
        return ()
    victim, blamed = situation.victims[0], _blamed(situation)
    found: list[tuple[int, int, Recommendation]] = []
    for place, suspect in enumerate(pursued(situation)):
        found += [(_rank(one.effect, suspect), place, one) for one in _against(suspect, victim, situation)]
    is_helpless = all(rank > _NOTHING for rank, _, _ in found)
    migration = _migrate_victim(victim, situation)
    found.append((_HELPS[migration.effect.helps], len(blamed), migration))
    found = sorted(found, key=_order)[: MAX_RECOMMENDATIONS - 1]
    found.append((_FIRST if is_helpless else _NOTHING, 0, _nothing(victim, situation, blamed)))
    return tuple(one for _, _, one in sorted(found, key=_order))


def pursued(situation: Situation) -> list[Suspect]:
    """Return the few suspects that actions are made for; only their facts are needed."""
    able = (suspect for suspect in _blamed(situation) if not effects.is_spared(suspect, situation))
    return list(islice(able, _MAX_SUSPECTS))


def _blamed(situation: Situation) -> list[Suspect]:
    return [s for s in situation.suspects if (s.score is not None and s.score > 0) or s.inflicts]


_HELPS = {True: 0, None: 1, False: 2}
_FIRST, _NOTHING, _WORSE = -1, 3, 4


def _rank(effect: Effect, suspect: Suspect) -> int:
    """Return the rank of an action against a suspect, relative to `_NOTHING`."""
    if effect.helps is False and not suspect.inflicts and not effects.is_near(effect):
        return _WORSE
    return _HELPS[effect.helps]


def _order(one: tuple[int, int, Recommendation]) -> tuple[int, int, int]:
    rank, place, recommendation = one
    return rank, place, _DISTURBS.index(recommendation.action)


#: Actions, the least disturbing first.
_DISTURBS: tuple[Action, ...] = (
    *("cap_cpu", "limit_cache", "limit_bandwidth"),
    *("migrate_suspect", "migrate_victim", "nothing"),
)


def _ids(who: Suspect | Victim, victim: Victim) -> tuple[str, str, str, str, str]:
    """Return the suspect's and the victim's identity, as `Recommendation` takes them."""
    return who.vm, who.name, who.job, victim.vm, victim.name


def _against(suspect: Suspect, victim: Victim, situation: Situation) -> Iterator[Recommendation]:
    is_worth_it = not is_left_alone(suspect, situation)
    if is_worth_it:
        yield from _cap(suspect, victim, situation)
    if suspect.is_vm:
        yield from _limit_cache(suspect, victim, situation)
        yield from _limit_bandwidth(suspect, victim, situation)
    if suspect.is_vm and is_worth_it:
        yield Recommendation(
            "migrate_suspect",
            *_ids(suspect, victim),
            effect=effect_of_less(suspect, victim, situation, suspect.cpu_usage_cores),
            evidence=(*_why(suspect), *migration_notes(suspect)),
            commands=migration(suspect, situation),
        )


def _cap(suspect: Suspect, victim: Victim, situation: Situation) -> Iterator[Recommendation]:
    if suspect.is_vm and not suspect.vcpus:
        return  # a quota is per vCPU
    # Rounded for people: down, but not below what is allowed.
    cores = max(math.floor(_cores(suspect, situation) * 1000) / 1000, situation.host.min_cores)
    if suspect.is_vm and suspect.by_libvirt:
        cores = max(cores, MIN_QUOTA_US * (suspect.vcpus or 1) / QUOTA_PERIOD_US)  # libvirt takes no less
    if cores >= suspect.cpu_usage_cores:
        return  # it uses next to nothing
    if suspect.is_vm:
        commands = cap_commands(suspect, victim, cores, situation)
    else:
        percent = max(1, round(cores * 100))
        words = ("systemctl", "set-property", "--runtime", "--", suspect.vm.removeprefix("host:"))
        commands = (
            Command(f"at most {percent} % of one CPU until the next boot", (*words, f"CPUQuota={percent}%")),
            Command("undo it", (*words, "CPUQuota=")),
        )
    yield Recommendation(
        "cap_cpu",
        *_ids(suspect, victim),
        effect=effect_of_less(suspect, victim, situation, suspect.cpu_usage_cores - cores),
        amount=cores,
        unit="cores",
        evidence=(
            f"from {suspect.cpu_usage_cores:.3g} to {cores:.3g} cores",
            *_why(suspect),
            *cap_notes(suspect, cores),
        ),
        commands=commands,
    )


def _cores(suspect: Suspect, situation: Situation) -> float:
    """Return how much CPU a suspect may keep, in cores.

    The cut brings mnCPI down to its threshold. It is computed with the coefficient's lower 95 % bound if that is above
    0, so it is enough in 39 of 40 cases. Without a coefficient, or if the suspect causes only a small part,
    `_FIRST_STEP` of its usage.
    """
    a, error = suspect.coefficient, suspect.standard_error
    mn_cpi, threshold = situation.mn_cpi, situation.mn_cpi_threshold
    says_little = a is None or a <= 0 or is_small_part(suspect, situation)
    if a is None or says_little or mn_cpi is None or threshold is None or mn_cpi <= threshold:
        return max(situation.host.min_cores, suspect.cpu_usage_cores * _FIRST_STEP)
    low = a - effects.Z95 * error if error is not None else a
    less = (mn_cpi - threshold) / (low if low > 0 else a)
    return max(situation.host.min_cores, suspect.cpu_usage_cores - less)


def _limit_cache(suspect: Suspect, victim: Victim, situation: Situation) -> Iterator[Recommendation]:
    share = _share(suspect.llc_bytes, suspect.all_llc_bytes)
    host = situation.host
    ways = max(host.min_ways, 2, host.cache_ways // 6)
    if share is None or share < _CACHE_SHARE or ways >= host.cache_ways:
        return
    yield Recommendation(
        "limit_cache",
        *_ids(suspect, victim),
        effect=unknown_effect(victim, situation, "no coefficient says what a VM's share of the cache costs others"),
        amount=float(ways),
        unit="ways",
        evidence=(
            f"it has {share:.0%} of the cache that VMs have ({suspect.llc_bytes or 0:,.0f} bytes)",
            f"{ways} of {host.cache_ways} ways leave {host.cache_ways - ways} to {victim.name} and others",
            *_why(suspect),
        ),
        commands=(act_command("limit-cache", suspect.vm, ("--ways", str(ways)), victim, situation),),
    )


def _limit_bandwidth(suspect: Suspect, victim: Victim, situation: Situation) -> Iterator[Recommendation]:
    share = _share(suspect.memory_bytes_per_s, suspect.all_memory_bytes_per_s)
    host = situation.host
    if share is None or share < _BANDWIDTH_SHARE or not host.min_bandwidth_percent:
        return
    # The kernel rounds up to its steps.
    step = max(1, host.bandwidth_step_percent)
    least, most = math.ceil(host.min_bandwidth_percent / step) * step, 100 - step
    if least > most:
        return
    kept = _cores(suspect, situation) / max(suspect.cpu_usage_cores, situation.host.min_cores)
    percent = min(most, max(least, math.floor(kept * 100 / step) * step))
    yield Recommendation(
        "limit_bandwidth",
        *_ids(suspect, victim),
        effect=unknown_effect(victim, situation, "no coefficient says what a VM's memory traffic costs others"),
        amount=float(percent),
        unit="percent",
        evidence=(
            f"it has {share:.0%} of the VMs' memory traffic ({suspect.memory_bytes_per_s or 0:,.0f} bytes/s)",
            *_why(suspect),
        ),
        commands=(act_command("limit-bandwidth", suspect.vm, ("--percent", str(percent)), victim, situation),),
    )


def _migrate_victim(victim: Victim, situation: Situation) -> Recommendation:
    why = "what it will suffer depends on the host: `whitepanda place` ranks them"
    return Recommendation(
        "migrate_victim",
        *_ids(victim, victim),
        effect=unknown_effect(victim, situation, why),
        evidence=(*_suffering(victim), *migration_notes(victim)),
        commands=migration(victim, situation),
    )


def _nothing(victim: Victim, situation: Situation, blamed: Sequence[Suspect]) -> Recommendation:
    lines = list(_suffering(victim))
    if situation.lasted_s > 0:
        lines.append(f"it has lasted {situation.lasted_s:.0f} s")
    alone = [suspect for suspect in blamed if is_left_alone(suspect, situation)]
    small = [suspect for suspect in alone if is_small_part(suspect, situation)]
    spared = [suspect for suspect in alone if not is_small_part(suspect, situation)]
    if small:
        lines.append(f"too small a share to limit (score): {_scores(small)}")
    if spared:
        lines.append(f"not limited, as this host blames another (score): {_scores(spared)}")
    if len(alone) < len(blamed):
        lines.append("it lasts until the suspect changes its behaviour")
    elif not alone:
        lines.append("no VM here is known to hurt others: a limit may hit the wrong one")
    signal, before, threshold = effects.signal_of(victim, situation)
    is_cut = signal == "mn_cpi" and situation.is_cut
    why = f"{effects.CUT_WORDS if is_cut else 'as it is now'}; what the VMs will do next is unknown"
    effect = Effect(signal, before, before, threshold=threshold, unknown_because=why, is_at_least=is_cut)
    return Recommendation("nothing", "", "", "", victim.vm, victim.name, effect, evidence=tuple(lines))


# --- evidence ---


def _scores(suspects: Sequence[Suspect]) -> str:
    return ", ".join(f"{suspect.name} {suspect.score or 0.0:.3g}" for suspect in suspects[:_MAX_SUSPECTS])


def _why(suspect: Suspect) -> tuple[str, ...]:
    score, a, cores = suspect.score, suspect.coefficient, suspect.cpu_usage_cores
    inflicts = ("this host's own analysis finds it inflicting",) if suspect.inflicts else ()
    if score is None or a is None:
        return inflicts
    return f"score {score:.3g} = coefficient {a:.3g} of job {suspect.job} * {cores:.3g} cores", *inflicts


def _suffering(victim: Victim) -> tuple[str, ...]:
    lines = []
    if victim.cpi is not None and victim.threshold_cpi is not None:
        mean = f", mean {victim.mean_cpi:.3g}" if victim.mean_cpi is not None else ""
        place = "above" if victim.cpi > victim.threshold_cpi else "within"
        lines.append(
            f"CPI {victim.cpi:.3g} of {victim.name} is {place} {victim.threshold_cpi:.3g} of job {victim.job}{mean}"
        )
    if victim.degradation is not None:
        lines.append(f"{victim.name} is {victim.degradation:.3g} times as slow as undisturbed")
    return tuple(lines)


def _share(part: float | None, whole: float) -> float | None:
    return part / whole if part is not None and whole > 0 else None
