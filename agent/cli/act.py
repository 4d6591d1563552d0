"""`whitepanda act`: limit a VM for a while, see what is limited, undo it."""

import math
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.text import Text

from agent import config as agent_config
from agent.act.client import ask
from agent.act.journal import is_empty
from agent.act.limits import is_uuid
from agent.act.records import AMOUNTS, Answer, Apply, Ask, Undo
from agent.api.client import DEFAULT_CONFIG, find_config
from agent.cli._options import JsonOption
from agent.display.render import cell, columns, print_table
from whitepanda.common import log
from whitepanda.common.cli import console, errors, print_json
from whitepanda.common.errors import InputError, UnavailableError

app = typer.Typer(
    help="Limit VMs for a while, by a separate service that undoes it. The agent changes nothing.", no_args_is_help=True
)

SocketOption = Annotated[Path | None, typer.Option(readable=False, help="Where the service answers.")]
ConfigOption = Annotated[
    Path | None, typer.Option(help="The agent's configuration, whose section act names the socket.")
]


@app.command()
def run(config: Annotated[Path, typer.Option("--config", "-c", help="The agent's configuration (TOML).")]) -> None:
    """Run the service in the foreground until SIGTERM or Ctrl-C; then all is undone.

    This is what whitepanda-act.service starts.
    """
    settings = agent_config.load(config)
    log.configure(settings.agent.log_level)
    from agent.act import server  # noqa: PLC0415 - a wrong configuration is reported before anything heavy is loaded

    server.run(settings)


@app.command("list")
def list_(socket: SocketOption = None, config: ConfigOption = None, *, json: JsonOption = False) -> None:
    """List the active actions: what, since when, for how long, and who asked for it."""
    answer = ask(_find(socket, config), Ask())
    if json:
        print_json({"in_force": msgspec.to_builtins(answer.in_force)})
        return
    if not answer.in_force:
        console.print("nothing is limited")
        return
    titles = ("NO", "ACTION", "VM", "AMOUNT", "ENDS IN", "UID", "WHY")
    rows = []
    for one in answer.in_force:
        record = one.record
        amount = f"{record.amount:g} {AMOUNTS[record.action]}"
        cells = (record.number, record.action, record.vm, amount, f"{one.left_s:.0f} s", record.uid, record.why)
        rows.append([cell(str(text)) for text in cells])
    print_table(columns(dict.fromkeys(titles, 0), ("ACTION", "VM", "WHY")), rows)
    for one in answer.in_force:
        if one.trouble:
            _say(f"action {one.record.number} cannot be undone yet: {one.trouble}")


@app.command()
def apply(
    action: Annotated[str, typer.Argument(help="cap-cpu, limit-bandwidth or limit-cache.")],
    vm: Annotated[str, typer.Argument(help="UUID or name of the VM that is limited.")],
    *,
    cores: Annotated[float | None, typer.Option(help="cap-cpu: CPU that the VM may use in all.")] = None,
    percent: Annotated[
        float | None, typer.Option(help="limit-bandwidth: of the memory bandwidth, as resctrl counts it.")
    ] = None,
    ways: Annotated[float | None, typer.Option(help="limit-cache: ways of the last-level cache.")] = None,
    seconds: Annotated[float, typer.Option(help="How long it lasts.")] = 900.0,
    victim: Annotated[
        str, typer.Option(help="UUID or name of the VM that suffers: if it gets worse, it is undone.")
    ] = "",
    why: Annotated[str, typer.Option(help="For the audit log: such as the incident's number.")] = "",
    socket: SocketOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Limit a VM for a while; with act.dry_run say what would be done.

    What to limit, and to how much: `whitepanda explain VM` and `whitepanda incidents show` recommend it.
    """
    amounts = {"cores": cores, "percent": percent, "ways": ways}
    wanted = next((known for known in AMOUNTS if known == action), None)
    if wanted is None:
        raise InputError(f"ACTION must be one of {', '.join(AMOUNTS)} (value {action[:40]!r})")
    unit = AMOUNTS[wanted]
    amount = amounts.pop(unit)
    others = [name for name, value in amounts.items() if value is not None]
    if amount is None or others:
        got = f"; --{others[0]} is of another action" if others else ""
        raise InputError(f"{action} needs --{unit}{got}")
    for option, value in ((unit, amount), ("seconds", seconds)):
        if not (math.isfinite(value) and value > 0):
            raise InputError(f"--{option} must be a finite number above 0 (value {value:g})")
    request = Apply(action=wanted, vm=vm, amount=amount, seconds=seconds, victim=victim, why=why)
    _show(ask(_find(socket, config), request), json=json)


@app.command()
def undo(
    number: Annotated[str | None, typer.Argument(help="As `whitepanda act list` shows it, or `all`.")] = None,
    vm: Annotated[
        str | None, typer.Option(help="Instead: UUID or name of the VM, on which nothing need be in force.")
    ] = None,
    socket: SocketOption = None,
    config: ConfigOption = None,
    *,
    json: JsonOption = False,
) -> None:
    """Undo an action now. What another program has changed meanwhile is left alone, and reported.

    `--vm` before a VM is migrated or saved: nothing to undo is not an error, also where the service never ran
    and no `--socket` is given.
    """
    _show(answer := _undone(_undo(number, vm), socket, config), json=json)
    if any(done.result == "failed" for done in answer.done):
        raise typer.Exit(4)


@app.command()
def status(socket: SocketOption = None, config: ConfigOption = None, *, json: JsonOption = False) -> None:
    """Show what the service may do: enabled or not, dry-run or not, its limits, and how much is in force."""
    answer = ask(_find(socket, config), Ask())
    limits = msgspec.to_builtins(answer.limits)
    if json:
        print_json({"limits": limits, "in_force": len(answer.in_force)})
        return
    for key, value in limits.items():
        _say(f"{key:<22} {str(value).lower() if isinstance(value, bool) else value}")
    _say(f"{'in force':<22} {len(answer.in_force)}")


def _undo(number: str | None, vm: str | None) -> Undo:
    if (number is None) == (vm is None):
        raise InputError("give either NUMBER (or `all`) or --vm VM")
    if vm == "":
        raise InputError("--vm must be a VM's UUID or name (value '')")
    if number is None or number == "all":
        return Undo(vm=vm or "")
    if not (number.isascii() and number.isdigit() and 0 < int(number) < 2**63):
        raise InputError(f"NUMBER must be an action's number, or all (value {number[:40]!r})")
    return Undo(int(number))


def _undone(asked: Undo, socket: Path | None, config: Path | None) -> Answer:
    try:
        return ask(_find(socket, config), asked)
    except UnavailableError:
        # Without the service its folder shows that no action applies, unless we cannot read which folder that is.
        known, file = find_config(config)
        is_sure = file is not None or not DEFAULT_CONFIG.exists()
        if asked.vm and socket is None and is_sure and is_empty(Path(known.act.state_dir)):
            if not is_uuid(asked.vm):
                unchecked = f"no service runs, so it was not checked whether a VM is named {asked.vm[:80]!r}"
                errors.print(Text(unchecked), soft_wrap=True)
            return Answer()
        raise


def _find(socket: Path | None, config: Path | None) -> Path:
    return socket or Path(find_config(config)[0].act.socket)


def _show(answer: Answer, *, json: bool) -> None:
    if json:
        print_json({"done": msgspec.to_builtins(answer.done)})
        return
    if not answer.done:
        _say("nothing was in force")
    for done in answer.done:
        number = f"action {done.number}: " if done.number else ""
        states = f"{done.before or 'none'} -> {done.after or 'none'}"
        _say(f"{number}{done.action} {done.vm}: {done.result.replace('_', ' ')} ({states}); {done.detail}")


def _say(text: str) -> None:
    console.print(Text(text), soft_wrap=True)
