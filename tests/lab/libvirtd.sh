#!/bin/bash
# Start the lab's virtlogd and libvirtd where they do not run, and wait until libvirtd answers.
. "$(dirname "$0")/lib.sh"
mkdir -p "$RUN" "$LOGS" /run/libvirt
cat >"$RUN/libvirtd.conf" <<CONF
log_outputs = "3:file:$LOGS/libvirtd.log"
auth_unix_ro = "none"
auth_unix_rw = "none"
CONF
if gone virtlogd; then
    setsid virtlogd --pid-file "$RUN/virtlogd.pid" >"$LOGS/virtlogd.out" 2>&1 </dev/null 9>&- &
fi
if gone libvirtd; then
    # In the lab's network, where the taps are to be. /dev/kvm is hidden: where it exists but cannot be used, libvirt
    # would spend 12 s on finding out. What hides it may not be opened either: of a KVM that seems usable and that QEMU
    # does not have libvirt asks QEMU again at every start, for 4 s.
    rm -f "$RUN/no-kvm"
    mknod -m 000 "$RUN/no-kvm" c 1 3
    # shellcheck disable=SC2016 # the inner shell expands it
    setsid "${PYTHON:-python3}" "$HERE/reaper.py" unshare --mount sh -c '[ ! -e /dev/kvm ] || mount --bind "$1" /dev/kvm; shift; exec "$@"' sh "$RUN/no-kvm" \
        nsenter --net="/run/netns/$NETNS" libvirtd --config "$RUN/libvirtd.conf" --pid-file "$RUN/libvirtd.pid" \
        >"$LOGS/libvirtd.out" 2>&1 </dev/null 9>&- &
fi
wait_for 60 virsh_ version || die "libvirtd does not answer; see $LOGS/libvirtd.log and libvirtd.out"
