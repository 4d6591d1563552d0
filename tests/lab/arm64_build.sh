#!/bin/bash
# Build a small arm64 guest (Debian's cloud kernel, busybox, Python) whose emulated CPU has a PMU that the kernel drives.
# The packages come from the machine's own apt sources by a private apt root: this machine's package database, and the
# architectures it knows, stay as they are. Result: $LAB/arm64/{vmlinuz,base.cpio}; nothing is done where they are there.
# usage: arm64_build.sh        LAB is ${WHITEPANDA_LAB:-/var/lib/whitepanda-lab}
set -euo pipefail
A=${WHITEPANDA_LAB:-/var/lib/whitepanda-lab}/arm64
VERSION=1 # of the guest that this script builds
mkdir -p "$A"
exec 9>"$A/lock"
flock 9
if [ "$(cat "$A/built" 2>/dev/null)" = "$VERSION" ]; then exit 0; fi
rm -rf "$A/aptroot" "$A/debs" "$A/root" "$A/kernel" "$A/built"
mkdir -p "$A"/aptroot/{etc/preferences.d,state/lists/partial,cache/archives/partial} "$A"/{debs,root,kernel}
touch "$A/aptroot/status"
for f in sources.list sources.list.d trusted.gpg.d auth.conf auth.conf.d; do
    if [ -e "/etc/apt/$f" ]; then cp -r "/etc/apt/$f" "$A/aptroot/etc/"; fi
done
cat >"$A/apt.conf" <<CONF
APT::Architecture "arm64"; APT::Architectures { "arm64"; }; APT::Sandbox::User "root";
APT::Install-Recommends "false"; Acquire::Languages "none";
Dir::Etc "$A/aptroot/etc"; Dir::Etc::parts "/etc/apt/apt.conf.d";
Dir::State "$A/aptroot/state"; Dir::State::status "$A/aptroot/status"; Dir::Cache "$A/aptroot/cache";
CONF
export APT_CONFIG=$A/apt.conf
apt-get update -qq
depends() { apt-cache depends "$1" | sed -nE "s/^ *(Pre)?Depends: ($2)\$/\2/p" | head -n 1; }
KERNEL=$(depends linux-image-cloud-arm64 'linux-image-[0-9].*')
PYTHON=$(depends python3-minimal 'python3\.[0-9]*-minimal')
(cd "$A/debs" && apt-get download -qq "$KERNEL")
# The minimal interpreter alone lacks ctypes, which is in the library package; apt adds what these need.
apt-get install -qq -y --download-only "$PYTHON" "lib${PYTHON%-minimal}-stdlib" busybox-static >/dev/null
unset APT_CONFIG
dpkg-deb --fsys-tarfile "$A"/debs/linux-image-*.deb | tar -x -C "$A/kernel" ./boot
mv "$A"/kernel/boot/vmlinuz-* "$A/vmlinuz"
for deb in "$A"/aptroot/cache/archives/*.deb; do dpkg-deb -x "$deb" "$A/root"; done
cd "$A/root"
mkdir -p proc sys dev tmp app
rm -rf usr/share usr/lib/python3*/{test,lib2to3,idlelib,pydoc_data,ensurepip,distutils} usr/lib/*/gconv lib/*/gconv
[ -e bin/sh ] || ln -s busybox bin/sh
ln -sf "/usr/bin/${PYTHON%-minimal}" usr/bin/python3
cat >init <<'INIT'
#!/bin/busybox sh
export PATH=/bin:/usr/bin:/sbin:/usr/sbin HOME=/ PYTHONDONTWRITEBYTECODE=1
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sys /sys
/bin/busybox mount -t devtmpfs dev /dev
/usr/bin/python3 -S /app/main.py
echo "GUEST EXIT $?"
/bin/busybox poweroff -f
INIT
chmod +x init
find . | cpio -o -H newc --quiet >"$A/base.cpio"
rm -rf "$A/aptroot" "$A/debs" "$A/root" "$A/kernel" "$A/apt.conf"
echo "$VERSION" >"$A/built"
