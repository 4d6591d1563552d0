#!/bin/bash
# Start a VM of the lab (transient: libvirt forgets it when it ends) and wait until its guest is up (NOWAIT=1: do not).
# usage: domain.sh LOAD NUMBER [VCPUS] [MAX_VCPUS]      the VM is wplab-LOAD-NUMBER at 10.77.0.(100+NUMBER); LOAD is mixed,
# idle, busy, writer, server (HTTP on port 80) or stressor (told by lines to port 9000; both: guest_load.c)
. "$(dirname "$0")/lib.sh"
LOAD=$1 NUMBER=$2 VCPUS=${3:-1} MAX_VCPUS=${4:-${3:-1}}
NAME=$PREFIX$LOAD-$NUMBER
TWO=$(printf %02x "$NUMBER")
PING=$([ "$LOAD" = mixed ] && echo 10.77.0.1 || true)
ready() { grep -q GUEST-READY "$VM/$NAME.log"; }
define() {
    truncate -s 64M "$VM/$NAME.raw"
    rm -f "$VM/$NAME.log"
    cat >"$VM/$NAME.xml" <<XML
<domain type='qemu'>
  <name>$NAME</name>
  <uuid>57500000-0000-4000-8000-0000000000$TWO</uuid>
  <title>lab $LOAD</title>
  <metadata>
    <nova:instance xmlns:nova="http://openstack.org/xmlns/libvirt/nova/1.1">
      <nova:name>$LOAD-server</nova:name>
      <nova:flavor name="lab.$LOAD"><nova:memory>128</nova:memory></nova:flavor>
      <nova:owner><nova:user uuid="0a">operator</nova:user><nova:project uuid="0b">lab</nova:project></nova:owner>
      <nova:root type="image" uuid="0c"/>
    </nova:instance>
  </metadata>
  <memory unit='MiB'>128</memory>
  <vcpu current='$VCPUS'>$MAX_VCPUS</vcpu>
  <os>
    <type arch='x86_64' machine='pc'>hvm</type>
    <kernel>$VM/vmlinuz</kernel>
    <initrd>$VM/initrd.gz</initrd>
    <cmdline>console=ttyS0 quiet panic=-1 no_timer_check tsc=reliable nowatchdog ipv6.disable=1 load=$LOAD address=10.77.0.$((100 + NUMBER)) ping=$PING</cmdline>
  </os>
  <features><acpi/></features>
  <cpu mode='custom' match='exact' check='none'><model fallback='allow'>qemu64</model></cpu>
  <on_poweroff>destroy</on_poweroff><on_reboot>destroy</on_reboot><on_crash>destroy</on_crash>
  <devices>
    <emulator>/usr/bin/qemu-system-x86_64</emulator>
    <disk type='file' device='disk'>
      <driver name='qemu' type='raw' cache='none'/><source file='$VM/$NAME.raw'/><target dev='vda' bus='virtio'/>
    </disk>
    <interface type='bridge'>
      <source bridge='$BRIDGE'/><virtualport type='openvswitch'/><target dev='wptap$NUMBER'/>
      <model type='virtio'/><mac address='52:54:00:77:00:$TWO'/>
      <!-- Open vSwitch in user space makes no checksums, so the guest has to: TCP would not come through. -->
      <driver><host csum='off' gso='off' tso4='off' tso6='off' ecn='off' ufo='off'/></driver>
    </interface>
    <controller type='usb' model='none'/><memballoon model='none'/>
    <serial type='file'><source path='$VM/$NAME.log'/><target port='0'/></serial>
  </devices>
</domain>
XML
}
if ! virsh_ domstate "$NAME" >/dev/null 2>&1; then
    define
    virsh_ create "$VM/$NAME.xml"
fi
[ -z "${NOWAIT:-}" ] || exit 0
# An emulated guest with several vCPUs can hang while it boots.
for _ in 1 2; do
    if wait_for 120 ready; then exit 0; fi
    echo "lab: $NAME: the guest is not up after 120 s; it is started again" >&2
    virsh_ destroy "$NAME" || true
    define
    virsh_ create "$VM/$NAME.xml"
done
wait_for 120 ready || die "$NAME: the guest is not up after three times 120 s; see $VM/$NAME.log"
