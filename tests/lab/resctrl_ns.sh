#!/bin/bash
# Run a command where /sys/fs/resctrl is our look-alike and where the CPU and the kernel claim to have the real one, in a
# mount namespace of its own: nothing is seen outside, and nothing is left when the command ends.
# usage: resctrl_ns.sh [OPTION OF resctrl_fuse.py]... -- COMMAND...
set -euo pipefail
HERE=$(dirname "$(readlink -f "$0")")
OPTIONS=()
while [ "$1" != -- ]; do
    OPTIONS+=("$1")
    shift
done
shift

INSIDE='
set -euo pipefail
HERE=$1 OPTIONS=$2
shift 2
mount -t tmpfs tmpfs /mnt
mkdir /mnt/fs
mount --rbind /sys/fs /mnt/fs
mount -t tmpfs tmpfs /sys/fs
for folder in /mnt/fs/*/; do
    name=$(basename "$folder")
    mkdir "/sys/fs/$name"
    mount --rbind "$folder" "/sys/fs/$name"
done
mkdir -p /sys/fs/resctrl
# shellcheck disable=SC2086 # a list of words
setpriv --pdeathsig KILL /usr/bin/python3 "$HERE/resctrl_fuse.py" /sys/fs/resctrl $OPTIONS </dev/null >/mnt/fuse.log 2>&1 &
FUSE=$!
for _ in $(seq 100); do
    [ ! -e /sys/fs/resctrl/info ] || break
    kill -0 $FUSE 2>/dev/null || { cat /mnt/fuse.log >&2; exit 1; }
    sleep 0.1
done
{ cat /proc/filesystems; printf "nodev\tresctrl\n"; } >/mnt/filesystems
mount --bind /mnt/filesystems /proc/filesystems
FLAGS="cat_l3 cqm mba cqm_llc cqm_occup_llc cqm_mbm_total cqm_mbm_local rdt_a"
sed "s/^flags\t\t: .*/& $FLAGS/" /proc/cpuinfo >/mnt/cpuinfo
mount --bind /mnt/cpuinfo /proc/cpuinfo
STATUS=0
"$@" || STATUS=$?
umount -l /sys/fs/resctrl
kill $FUSE 2>/dev/null || true
wait $FUSE || true
[ ! -s /mnt/fuse.log ] || cat /mnt/fuse.log >&2
exit $STATUS
'
exec unshare --mount --propagation private bash -c "$INSIDE" resctrl_ns "$HERE" "${OPTIONS[*]}" "$@"
