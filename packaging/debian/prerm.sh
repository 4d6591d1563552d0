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
    # The service has ended above, and undone what it had limited; what is left nobody would undo later.
    if [ @SIDE@ = agent ] && grep -qs '"records":\[{' /var/lib/whitepanda-act/journal.json; then
        echo "@PACKAGE@: limits on VMs are still in force (journalctl -u whitepanda-act says why): start whitepanda-act," >&2
        echo "then 'whitepanda act undo all'; or undo them by hand as /var/lib/whitepanda-act/audit.jsonl lists, and" >&2
        echo "move /var/lib/whitepanda-act/journal.json away" >&2
        exit 1
    fi
    update-alternatives --quiet --remove whitepanda /opt/whitepanda/@SIDE@/libexec/whitepanda
    ;;
esac
