#!/bin/sh
set -e

case "$1" in
configure | abort-upgrade | abort-deconfigure | abort-remove)
    systemd-sysusers @PACKAGE@.conf
    systemd-tmpfiles --create @PACKAGE@.conf
    update-alternatives --quiet \
        --install /usr/bin/whitepanda whitepanda /opt/whitepanda/@SIDE@/libexec/whitepanda @PRIORITY@ \
        --slave /usr/share/man/man1/whitepanda.1.gz whitepanda.1.gz /opt/whitepanda/@SIDE@/share/whitepanda.1.gz \
        --slave /usr/share/bash-completion/completions/whitepanda whitepanda-completion \
        /opt/whitepanda/@SIDE@/share/bash-completion

    for unit in @UNITS@; do
        deb-systemd-helper unmask "$unit" >/dev/null || true
        # What the administrator has disabled stays so. Nothing but the agent is enabled by itself.
        if [ "$unit" = "@ENABLED@" ] || deb-systemd-helper debian-installed "$unit"; then
            if deb-systemd-helper --quiet was-enabled "$unit"; then
                deb-systemd-helper enable "$unit" >/dev/null || true
            fi
        fi
        deb-systemd-helper update-state "$unit" >/dev/null || true
    done
    if [ -d /run/systemd/system ]; then
        systemctl --system daemon-reload >/dev/null || true
        # It starts those only that are enabled. One that does not come up says why in its journal, and does not keep
        # dpkg from its work.
        for unit in @UNITS@; do
            deb-systemd-invoke start "$unit" >/dev/null || true
        done
    fi
    ;;
abort-*) ;;
*)
    echo "@PACKAGE@ postinst: called with unknown argument '$1'" >&2
    exit 1
    ;;
esac
