#!/bin/bash
# Start COUNT paused VMs (no CPU, 36 MB each; a disk and a tap on the lab's Open vSwitch): what makes a host large. Those
# that are there stay. down.sh takes them away too.
# usage: paused.sh COUNT [FIRST]      the VMs are wplab-paused-FIRST and up, FIRST is 101 by default
. "$(dirname "$0")/lib.sh"
COUNT=$1 FIRST=${2:-101}
for number in $(seq "$FIRST" $((FIRST + COUNT - 1))); do
    name=${PREFIX}paused-$number
    [ ! -e "/run/libvirt/qemu/$name.xml" ] || continue
    truncate -s 16M "$VM/$name.raw"
    cat >"$VM/$name.xml" <<XML
<domain type='qemu'>
  <name>$name</name>
  <uuid>57500000-0000-4000-8000-$(printf %012x "$number")</uuid>
  <memory unit='MiB'>32</memory>
  <vcpu>2</vcpu>
  <os><type arch='x86_64' machine='pc'>hvm</type></os>
  <features><tcg><tb-cache unit='MiB'>8</tb-cache></tcg></features>
  <devices>
    <emulator>/usr/bin/qemu-system-x86_64</emulator>
    <disk type='file' device='disk'>
      <driver name='qemu' type='raw'/><source file='$VM/$name.raw'/><target dev='vda' bus='virtio'/>
    </disk>
    <interface type='bridge'>
      <source bridge='$BRIDGE'/><virtualport type='openvswitch'/><target dev='wptap$number'/><model type='virtio'/>
    </interface>
    <controller type='usb' model='none'/><memballoon model='none'/>
  </devices>
</domain>
XML
    virsh_ create --paused "$VM/$name.xml"
done
