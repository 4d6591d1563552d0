#!/bin/bash
# Boot the arm64 guest with the files of a folder added; /app/main.py of it runs, then the guest powers off. Its console,
# with what main.py prints, is the standard output.
# `-icount shift=1` makes every instruction take 2 ns of the guest's time, so a 1 GHz cycle counter gives exactly 0.5
# instructions per cycle whatever the host does. pauth-impdef: a cheaper pointer authentication, boots twice as fast.
# usage: arm64_run.sh FOLDER [CPUS]
set -euo pipefail
A=${WHITEPANDA_LAB:-/var/lib/whitepanda-lab}/arm64
INITRD=$(mktemp "$A/initrd.XXXXXX")
trap 'rm -f "$INITRD"' EXIT
cp "$A/base.cpio" "$INITRD"
(cd "$1" && find . -mindepth 1 | cpio -o -H newc --quiet) >>"$INITRD" # the kernel unpacks concatenated archives
timeout "${TIMEOUT_S:-90}" qemu-system-aarch64 -M virt -cpu max,pauth-impdef=on -smp "${2:-1}" -m 512 -accel tcg \
    -icount shift=1 -nographic -no-reboot -nodefaults -serial stdio -monitor none \
    -kernel "$A/vmlinuz" -initrd "$INITRD" -append "console=ttyAMA0 quiet panic=-1" </dev/null
