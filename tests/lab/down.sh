#!/bin/bash
# Take the lab down: its VMs, libvirtd, Open vSwitch, namespace. Works whatever state they are in; touches nothing else.
. "$(dirname "$0")/lib.sh"
# libvirtd goes first, so that it neither restarts nor mourns the VMs.
stop libvirtd
stop virtlogd
for file in /run/libvirt/qemu/"$PREFIX"*.pid; do
    [ -e "$file" ] || continue
    pid=$(cat "$file")
    name=$(basename "$file" .pid)
    # The number may be another process's by now: QEMU's arguments name the VM.
    if tr '\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null | grep -qF "guest=$name,"; then
        kill -KILL "$pid"
        wait_for 5 test ! -e "/proc/$pid/exe" || die "$name (process $pid) does not end"
    fi
    rm -f "/run/libvirt/qemu/$name.pid" "/run/libvirt/qemu/$name.xml"
done
stop vswitchd
stop ovsdb
[ ! -e "/run/netns/$NETNS" ] || ip netns del "$NETNS"
# The control groups that libvirtd made for its VMs; one that is in use is not removed.
for hierarchy in /sys/fs/cgroup /sys/fs/cgroup/*; do
    [ ! -d "$hierarchy/machine" ] || find "$hierarchy/machine" -depth -type d -exec rmdir {} \; 2>/dev/null || true
done
rm -rf "$RUN" "$LAB/ovs" "$VM/$PREFIX"*
