"""The commands of recommendations by the VM's manager, and how long each lasts. Pure.

A command that bypasses a VM's manager leaves the manager's records wrong: Nova would not find a VM that `virsh migrate`
moved. So each manager's VMs get its own tool, and unmanaged VMs none, with the reason. Commands are lists of words, not
for a shell; they name VMs by UUID, as a name may begin with "-", or by Proxmox' number.
"""

from agent.analysis.advice.recommendations import QUOTA_PERIOD_US, Command, Situation, Suspect, Victim, quota_us

_SECONDS = 900.0  # how long whitepanda's actions apply
_LIBVIRT = ("virsh", "-c", "qemu:///system")
# The first version of Nova's API in which the scheduler checks the host that is asked for.
_NOVA = ("openstack", "--os-compute-api-version", "2.30", "server", "migrate", "--live-migration")


def act_command(action: str, vm: str, amount: tuple[str, str], victim: Victim, situation: Situation) -> Command:
    """Return whitepanda's own command for an action, which ends by itself."""
    seconds = f"{min(_SECONDS, situation.host.max_seconds):g}"
    words = ("whitepanda", "act", "apply", action, vm, *amount, "--seconds", seconds, "--victim", victim.vm)
    return Command(f"for {seconds} s, undone by itself", words)


def cap_commands(suspect: Suspect, victim: Victim, cores: float, situation: Situation) -> tuple[Command, ...]:
    """Return commands that limit a VM to `cores`: by whitepanda for a while, and by its manager for good."""
    if not (suspect.by_libvirt or suspect.has_own_group):
        return ()
    own = act_command("cap-cpu", suspect.vm, ("--cores", f"{cores:g}"), victim, situation)
    if suspect.has_quota:  # by hand, the owner's quota would have to be written down first
        return (own,)
    period, quota = QUOTA_PERIOD_US, quota_us(cores, suspect.vcpus or 1)
    more: tuple[Command, ...] = ()
    match suspect.manager:
        case "libvirt":
            by_hand = (*_LIBVIRT, "schedinfo", suspect.vm, "--live", "--config")
            words = (*by_hand, f"vcpu_period={period}", f"vcpu_quota={quota}")
            undo = Command("undo it by hand", (*by_hand, "vcpu_quota=-1"))
            more = Command("by hand, kept over restarts and migrations", words), undo
        case "nova":
            extra = ("--property", f"quota:cpu_period={period}", "--property", f"quota:cpu_quota={quota}")
            change = "for good: FLAVOR is a copy of its flavor; a server keeps its flavor's old values until a resize"
            resize = "restarts the guest, then `openstack server resize confirm`; kept over restarts and migrations"
            more = (
                Command(change, ("openstack", "flavor", "set", *extra, "FLAVOR")),
                Command(resize, ("openstack", "server", "resize", "--flavor", "FLAVOR", suspect.vm)),
            )
        case "proxmox":
            set_limit = ("qm", "set", suspect.vmid)
            undo = Command("undo it by hand", (*set_limit, "--delete", "cpulimit"))
            limit = (*set_limit, "--cpulimit", f"{cores:g}")
            more = Command("by hand, kept over restarts and migrations", limit), undo
    return (own, *more)


def cap_notes(suspect: Suspect, cores: float) -> tuple[str, ...]:
    """Return how a limit is divided, and what becomes of it at a restart or a migration."""
    if not suspect.is_vm:
        return ()
    if suspect.by_libvirt:
        vcpus, notes = suspect.vcpus or 1, []
        if vcpus > 1:
            each = f"busy on one of its {vcpus} vCPUs only, it gets {cores / vcpus:.3g} cores"
            notes.append(f"the quota is per vCPU: {each}")
        restart = "a hard reboot or resize by Nova" if suspect.manager == "nova" else "a restart of the VM"
        return (*notes, f"what act sets ends with {restart}, and moves along with a live migration")
    if not suspect.has_own_group:
        return ("no command: the VM has no control group of its own, and others in it would be limited too",)
    lost = "what act sets is lost with a restart of the VM, and with a migration"
    if suspect.manager == "proxmox":
        return (lost,)
    return (f"{lost}; no manager of this QEMU is known, so no setting that lasts is",)


def migration(who: Suspect | Victim, situation: Situation) -> tuple[Command, ...]:
    """Return how a VM is migrated live, by its manager; without one, only where it would suffer least."""
    central = situation.host.central or "CENTRAL:PORT"
    ranks = Command(
        "rank the hosts by D-Factor; run it where an operator's certificate is (in the folder DIR), "
        "not on the hypervisor",
        ("whitepanda", "place", f"--central={central}", "--tls=DIR", f"--job={who.job}"),
    )
    lift = Command(
        "lift what act has set on it: a quota would move along for good", ("whitepanda", "act", "undo", "--vm", who.vm)
    )
    match who.manager:
        case "libvirt":
            migrate = (*_LIBVIRT, "migrate", "--live", "--persistent", "--undefinesource")
            words = (*migrate, who.vm, "qemu+ssh://HOST/system")
            return (lift, ranks, Command("migrate it to the first of them", words))
        case "nova":
            named = "HOST as `openstack compute service list --service nova-compute` names it"
            words = (*_NOVA, "--host", "HOST", who.vm)
            return (lift, ranks, Command(f"migrate it to the first of them, with Nova's rights; {named}", words))
        case "proxmox":
            purpose = "migrate it to the first of them; NODE as `pvecm nodes` names it; local disks: --with-local-disks"
            return (ranks, Command(purpose, ("qm", "migrate", who.vmid, "NODE", "--online")))
    return (ranks,)


def migration_notes(who: Suspect | Victim) -> tuple[str, ...]:
    """Return why a migration has no command; () if it has one."""
    if who.manager == "qemu":
        return ("no command migrates it: no manager of this QEMU is known; without one, restart it on another host",)
    return ("no command migrates it: who manages it is not known, as it is gone",) if not who.manager else ()
