# shellcheck shell=bash
# What the lab's scripts share. The lab is real libvirtd, Open vSwitch and QEMU VMs on one machine, without systemd, in
# a network namespace of its own. State: $WHITEPANDA_LAB. It stops only what it started, and it does not start beside a
# libvirtd, an Open vSwitch or VMs that are the machine's own.
set -euo pipefail
LAB=${WHITEPANDA_LAB:-/var/lib/whitepanda-lab}
RUN=$LAB/run
LOGS=$LAB/logs
VM=$LAB/vm
NETNS=wplab
BRIDGE=wplab0
PREFIX=wplab- # of the VMs' names
HERE=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")

die() {
    echo "lab: $*" >&2
    exit 1
}

# Print the process id of a daemon of ours. Each one's arguments name its pid file, so that a stale file whose number
# is another process's by now is not mistaken for it.
pid_of() {
    local pid
    pid=$(cat "$RUN/$1.pid" 2>/dev/null) || return 1
    pid=${pid//[!0-9]/}
    [ -n "$pid" ] && tr '\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null | grep -qF "$RUN/$1.pid" && echo "$pid"
}

wait_for() { # SECONDS COMMAND...
    local end=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        [ $SECONDS -lt $end ] || return 1
        sleep 0.1
    done
}

gone() { ! pid_of "$1" >/dev/null; }

stop() { # NAME: a stopped (SIGSTOP) or deaf one too
    local pid
    if pid=$(pid_of "$1"); then
        kill -CONT "$pid" 2>/dev/null || true
        kill "$pid" 2>/dev/null || true
        wait_for 5 gone "$1" || kill -KILL "$pid" 2>/dev/null || true
        wait_for 5 gone "$1" || die "$1 (process $pid) does not end"
    fi
    rm -f "$RUN/$1.pid"
}

in_netns() { nsenter --net="/run/netns/$NETNS" "$@"; }

virsh_() { timeout 60 virsh -q -c qemu:///system "$@"; }
