#!/bin/sh
set -e

# Also before an upgrade: the running program loads parts of itself late, and must not find the next version's.
if [ -d /run/systemd/system ]; then
    for unit in @UNITS@; do
        deb-systemd-invoke stop "$unit" >/dev/null || true
    done
fi
case "$1" in
remove | deconfigure)
    update-alternatives --quiet --remove whitepanda /opt/whitepanda/@SIDE@/libexec/whitepanda
    ;;
esac
