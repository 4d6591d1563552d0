#!/bin/bash
# Build the x86 guest: Debian's cloud kernel from the machine's own apt sources, and an initramfs of busybox that makes
# the load named on the kernel's command line. Result: $VM/{vmlinuz,initrd.gz}; nothing is done where they are there.
. "$(dirname "$0")/lib.sh"
VERSION=3 # of the guest that this script builds
mkdir -p "$VM"
chmod 755 "$LAB" "$VM"
exec 9>"$VM/lock"
flock 9
[ "$(cat "$VM/built" 2>/dev/null)" != "$VERSION" ] || exit 0
[ "$(dpkg --print-architecture)" = amd64 ] || die "the guest is built on amd64 only"
WORK=$VM/build
rm -rf "$WORK" "$VM/built"
mkdir -p "$WORK"/{deb,kernel,root/{bin,dev,proc,sys,mod}}
cloud_kernel() { apt-cache depends linux-image-cloud-amd64 2>/dev/null | awk '/Depends: linux-image/{print $2; exit}'; }
KERNEL=$(cloud_kernel)
fetch() { [ -n "$KERNEL" ] && (cd "$WORK/deb" && apt-get -qq -o APT::Sandbox::User=root download "$KERNEL"); }
if ! fetch 2>/dev/null; then
    apt-get update -qq
    KERNEL=$(cloud_kernel)
    fetch || die "apt cannot download the guest's kernel (linux-image-cloud-amd64)"
fi
dpkg-deb --fsys-tarfile "$WORK"/deb/*.deb | tar -x -C "$WORK/kernel" ./boot ./lib/modules
cp "$WORK"/kernel/boot/vmlinuz-* "$VM/vmlinuz"
MODULES=(
    drivers/virtio/virtio_ring drivers/virtio/virtio drivers/virtio/virtio_pci_modern_dev
    drivers/virtio/virtio_pci_legacy_dev drivers/virtio/virtio_pci drivers/block/virtio_blk
    net/core/failover drivers/net/net_failover drivers/net/virtio_net
)
for module in "${MODULES[@]}"; do cp "$WORK"/kernel/lib/modules/*/kernel/"$module.ko" "$WORK/root/mod/"; done
cp "$(command -v busybox)" "$WORK/root/bin/busybox"
gcc -static -O1 -pthread -o "$WORK/root/bin/guest_load" "$HERE/guest_load.c"
cat >"$WORK/root/init" <<'INIT'
#!/bin/busybox sh
export PATH=/bin
/bin/busybox --install -s /bin
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
dmesg -n 1
for m in virtio_ring virtio virtio_pci_modern_dev virtio_pci_legacy_dev virtio_pci virtio_blk failover net_failover \
    virtio_net; do insmod /mod/$m.ko; done
for word in $(cat /proc/cmdline); do
    case $word in load=* | address=* | ping=*) eval "${word%%=*}='${word#*=}'" ;; esac
done
ip link set lo up
ip addr add "$address/24" dev eth0
ip link set eth0 up
[ -z "$ping" ] || (while :; do ping -c 1 -s 1000 "$ping" >/dev/null 2>&1; sleep 0.2; done) &
echo "GUEST-READY load=$load"
i=0
case $load in
idle) while :; do sleep 3600; done ;;
busy) while :; do i=$((i + 1)); done ;;
mixed) # a burst of CPU, 1 MiB written and read past the page cache, a pause
    while :; do
        i=$((i + 1)) j=0
        while [ $j -lt 2000 ]; do j=$((j + 1)); done
        dd if=/dev/zero of=/dev/vda bs=64k count=16 seek=$((i % 32 * 16)) conv=fsync 2>/dev/null
        echo 3 >/proc/sys/vm/drop_caches
        dd if=/dev/vda of=/dev/null bs=64k count=16 skip=$((i % 32 * 16)) 2>/dev/null
        sleep 0.3
    done ;;
writer) # 40 MiB, in ten pieces, then nothing more
    while [ $i -lt 10 ]; do
        dd if=/dev/zero of=/dev/vda bs=64k count=64 seek=$((i * 64)) conv=fsync 2>/dev/null
        i=$((i + 1))
        sleep 0.5
    done
    echo "GUEST-WROTE 40 MiB"
    while :; do sleep 3600; done ;;
server) exec guest_load serve 80 ;; # and it is process 1 then: a guest whose server ends is no use
stressor) exec guest_load stress 9000 ;;
esac
INIT
chmod 755 "$WORK/root/init"
(cd "$WORK/root" && find . | cpio -o -H newc --quiet | gzip -1) >"$VM/initrd.gz"
rm -rf "$WORK"
echo "$VERSION" >"$VM/built"
