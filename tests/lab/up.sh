#!/bin/bash
# Bring the lab up: Open vSwitch in a network namespace, libvirtd, and three VMs (mixed, idle, busy). Root; idempotent.
# usage: up.sh [LOAD ...]      other VMs than those three; they are numbered from 1
. "$(dirname "$0")/lib.sh"
[ "$(id -u)" = 0 ] || die "only root can start libvirtd and VMs"
mkdir -p "$RUN" "$LOGS"
exec 9>"$LAB/up.lock"
flock 9

refuse() { die "$1; the lab would disturb it, so it does not start here"; }
if gone libvirtd && timeout 5 virsh -q -c qemu:///system version >/dev/null 2>&1; then refuse "a libvirtd runs here"; fi
if compgen -G '/etc/libvirt/qemu/*.xml' >/dev/null; then refuse "/etc/libvirt/qemu has VMs of this machine's own"; fi
if gone ovsdb && timeout 5 ovs-vsctl -t 2 show >/dev/null 2>&1; then refuse "an Open vSwitch runs here"; fi

"$HERE/guest.sh"

[ -e "/run/netns/$NETNS" ] || ip netns add "$NETNS"
ip -n "$NETNS" link set lo up

mkdir -p "$LAB/ovs" /run/openvswitch
OVSDB=$LAB/ovs/conf.db
if gone ovsdb; then
    rm -f "$OVSDB" "$LAB/ovs/.conf.db.~lock~"
    ovsdb-tool create "$OVSDB" /usr/share/openvswitch/vswitch.ovsschema
    ovsdb-server "$OVSDB" --remote=punix:/run/openvswitch/db.sock --pidfile="$RUN/ovsdb.pid" --unixctl="$RUN/ovsdb.ctl" \
        --log-file="$LOGS/ovsdb.log" --detach >/dev/null 2>&1 9>&-
    ovs-vsctl -t 10 --no-wait init
fi
if gone vswitchd; then
    in_netns ovs-vswitchd unix:/run/openvswitch/db.sock --pidfile="$RUN/vswitchd.pid" --unixctl="$RUN/vswitchd.ctl" \
        --log-file="$LOGS/vswitchd.log" --detach >/dev/null 2>&1 9>&-
fi
ovs-vsctl -t 30 --may-exist add-br "$BRIDGE" -- set bridge "$BRIDGE" datapath_type=netdev
in_netns ip link set "$BRIDGE" up
in_netns ip addr replace 10.77.0.1/24 dev "$BRIDGE"

"$HERE/libvirtd.sh"
if [ $# = 0 ]; then set -- mixed idle busy; fi
pids=()
number=0
for load in "$@"; do
    number=$((number + 1))
    "$HERE/domain.sh" "$load" "$number" 9>&- &
    pids+=($!)
done
for pid in "${pids[@]}"; do wait "$pid" || die "a VM did not start"; done
