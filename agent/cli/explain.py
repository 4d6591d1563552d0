"""`whitepanda explain VM`: its numbers, its verdict with the arithmetic, its suspects."""

from typing import Annotated

import typer

from agent.api.client import connect, find_socket
from agent.cli._moments import AtOption, moment_at, moment_json, print_moment
from agent.cli._options import ConfigOption, JsonOption, SocketOption
from agent.display import render
from agent.display.explanation import Grid, arithmetic, found_here, head, numbers, recommended, suspects
from agent.display.render import fields_of
from whitepanda.common.cli import console, print_json
from whitepanda.common.recommendations import recommendation_json
from whitepanda.v1 import host_pb2


def explain(
    vm: Annotated[str, typer.Argument(help="UUID of a VM on this host, or a name that only one has.")],
    socket: SocketOption = None,
    config: ConfigOption = None,
    at: AtOption = None,
    *,
    json: JsonOption = False,
) -> None:
    """Explain one VM: what it does or suffers and how much, its numbers, the verdict's arithmetic, the suspects.

    With `--at` as it was then: evidence and recommendations of VMs that suffered or inflicted.
    """
    moment = None if at is None else moment_at(at, socket, config, vm)
    if moment is not None:
        answer = moment.explanation
    else:
        with connect(find_socket(socket, config)) as client:
            answer = client.explain(vm)
    if json:
        print_json({**moment_json(moment), **_json(answer)})
        return
    if moment is not None:
        print_moment(moment)
    for part in (head, found_here, numbers, arithmetic, suspects, recommended):
        for piece in part(answer):
            if isinstance(piece, Grid):
                for line in render.no_room(render.print_table(piece.columns, piece.rows)):
                    console.print(line, soft_wrap=True)
            else:
                console.print(piece, soft_wrap=True)


def _json(answer: host_pb2.VmExplanation) -> dict[str, object]:
    statistics = fields_of(answer.statistics, "job", "platform", "samples", "mean_cpi", "std_cpi")
    return {
        **render.summary_json(answer.vm),
        "detector": answer.detector or None,
        "evidence": [
            {"signal": e.signal, "value": e.value, "expected": e.baseline, "threshold": e.threshold}
            for e in answer.evidence
        ],
        "signals": {s.name: {"value": s.value, "learnt": s.learnt, "expected": s.baseline} for s in answer.signals},
        "events": [render.event_json(event) for event in answer.events],
        "statistics": statistics if answer.statistics.samples > 0 else None,
        **fields_of(answer, "cpi", "n_cpi", "victim_threshold_cpi", "mn_cpi", "mn_cpi_threshold", "victim_slots"),
        **fields_of(answer, "triggered", "coefficient_version"),
        "coefficient_age_s": answer.coefficient_age_ns / 1e9 if answer.coefficient_version else None,
        "suspects": [render.suspect_json(one) for one in answer.suspects],
        "history": [fields_of(point, "start_unix_ns", "cpi", "cpu_usage_cores") for point in answer.history],
        "recommendations": [recommendation_json(one) for one in answer.recommendations],
    }
