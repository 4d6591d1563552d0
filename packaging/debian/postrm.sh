#!/bin/sh
set -e

if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
    systemctl --system daemon-reload >/dev/null || true
fi
if [ "$1" = remove ]; then
    for unit in @UNITS@; do
        deb-systemd-helper mask "$unit" >/dev/null || true
    done
fi
if [ "$1" = purge ]; then
    for unit in @UNITS@; do
        deb-systemd-helper purge "$unit" >/dev/null || true
        deb-systemd-helper unmask "$unit" >/dev/null || true
    done
    # Configuration is dpkg's to delete; keys and certificates that were put beside it are not the package's. The user stays, as
    # Debian's do, so that no other user gets its number and what it owned.
    for folder in @STATE@; do
        # A file system that is mounted there is emptied and stays.
        rm -rf "$folder" || echo "@PACKAGE@: $folder could not be deleted wholly (is it mounted?); delete what is left by hand" >&2
    done
fi
