#!/bin/bash
# Run a real systemd as PID 1, in namespaces of its own over a throw-away layer on this machine's root: what it writes
# goes to memory, what it mounts stays inside, its network is a loopback. Prints "PID <n>", systemd's number out here
# (enter with nsenter -t <n> -a), and stays until systemd ends or it is terminated; then nothing is left.
# FOLDER/root is copied over the new root; FOLDER/prepare, where there is one, is run there before systemd starts, with
# the new root as its working directory. With "cpu", where this machine has the cpu controller in control groups v1 and
# not in v2, groups of its own of these hierarchies are mounted at /run/cgroup/CONTROLLERS: VMs in there can be limited.
# usage: systemd_ns.sh FOLDER [cpu]
set -euo pipefail
FOLDER=$(readlink -f "$1")
CGROUP2=$(awk '$3 == "cgroup2" {print $2; exit}' /proc/mounts)
[ -n "$CGROUP2" ] || { echo "no cgroup2 file system is mounted" >&2; exit 1; }
OURS=$CGROUP2/whitepanda-systemd-$$
BEFORE=$CGROUP2$(sed -n 's/^0:://p' /proc/self/cgroup)
mkdir "$OURS"
# Hierarchies of v1 that the machine gets too: MOUNT CONTROLLERS, a line each.
V1=
if [ "${2:-}" = cpu ] && ! grep -qw cpu "$CGROUP2/cgroup.controllers"; then
    V1=$(awk '$3 == "cgroup" && $4 ~ /(^|,)cpu(acct)?(,|$)/ {
        wanted = ""; n = split($4, words, ",")
        for (i = 1; i <= n; i++) if (words[i] ~ /^cpu(acct)?$/) wanted = wanted (wanted ? "," : "") words[i]
        print $2, wanted }' /proc/mounts)
fi
release() { # GROUP WHERE_TO: remove a group of ours once what is in it has ended
    echo $$ >"$2/cgroup.procs" 2>/dev/null || true
    for _ in $(seq 50); do
        find "$1" -depth -type d -exec rmdir {} + 2>/dev/null || true
        [ -d "$1" ] || break
        sleep 0.1
    done
}
cleanup() {
    [ -z "${UNSHARE:-}" ] || kill -9 "$UNSHARE" 2>/dev/null || true # its child, the namespace's PID 1, goes with it
    wait 2>/dev/null || true
    echo $$ >"$CGROUP2/cgroup.procs" 2>/dev/null || true # where the next fails
    release "$OURS" "$BEFORE"
    while read -r mount _; do
        [ -z "$mount" ] || release "$mount/whitepanda-systemd-$$" "$mount"
    done <<<"$V1"
}
trap cleanup EXIT
trap 'exit 0' TERM INT
echo $$ >"$OURS/cgroup.procs" # so the cgroup namespace begins here
while read -r mount _; do
    [ -n "$mount" ] || continue
    mkdir "$mount/whitepanda-systemd-$$"
    echo $$ >"$mount/whitepanda-systemd-$$/cgroup.procs"
done <<<"$V1"

INSIDE='
set -e
mount -t tmpfs tmpfs /mnt
mkdir /mnt/upper /mnt/work /mnt/root
mount -t overlay overlay -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work /mnt/root
cd /mnt/root
mount -t proc proc proc
mount --rbind /dev dev
mount -t sysfs sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=1777 tmpfs tmp
while read -r _ controllers; do
    [ -n "$controllers" ] || continue
    mkdir -p "run/cgroup/$controllers"
    mount -t cgroup -o "$controllers" cgroup "run/cgroup/$controllers"
done <<<"$1"
: >etc/fstab
: >etc/machine-id
# Nothing of this machine is to be started, and no hardware is to be looked for.
rm -rf etc/systemd/system/*.wants
for unit in systemd-networkd-wait-online networking ifupdown-wait-online systemd-udevd systemd-udev-trigger \
    systemd-udev-settle systemd-modules-load systemd-sysctl systemd-binfmt systemd-remount-fs systemd-timesyncd \
    systemd-firstboot systemd-machine-id-commit systemd-update-utmp systemd-sysusers systemd-tmpfiles-setup-dev; do
    ln -sf /dev/null etc/systemd/system/$unit.service
done
for unit in tmp.mount dev-hugepages.mount dev-mqueue.mount sys-kernel-debug.mount sys-kernel-tracing.mount \
    sys-fs-fuse-connections.mount sys-kernel-config.mount proc-sys-fs-binfmt_misc.automount; do
    ln -sf /dev/null etc/systemd/system/$unit
done
cp -r "$0/root/." .
if [ -e "$0/prepare" ]; then bash -e "$0/prepare"; fi
mkdir -p .old
pivot_root . .old
cd /
umount -l /.old
exec env -i container=unshare PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --system \
    --unit=basic.target --show-status=no --log-target=journal --log-level=warning
'
unshare --fork --kill-child --pid --mount --uts --ipc --net --cgroup --propagation private \
    bash -c "$INSIDE" "$FOLDER" "$V1" </dev/null >"$FOLDER/systemd.log" 2>&1 &
UNSHARE=$!
for _ in $(seq 100); do
    kill -0 $UNSHARE 2>/dev/null || break
    CHILD=$(cat /proc/$UNSHARE/task/$UNSHARE/children 2>/dev/null || true)
    if [ -n "$CHILD" ] && [ "$(cat /proc/${CHILD% }/comm 2>/dev/null)" = systemd ]; then
        echo "PID ${CHILD% }"
        wait $UNSHARE || true
        exit 0
    fi
    sleep 0.1
done
echo "systemd did not start: $(tail -n 3 "$FOLDER/systemd.log")" >&2
exit 1
