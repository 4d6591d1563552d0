#!/bin/bash
# Install what the integration tests need: Debian packages where this is root on a Debian, then the Python extra `host`.
# Quick when all is there. Elsewhere, or without a network, it says so and succeeds: the tests then skip with the reason.
set -euo pipefail
cd "$(dirname "$0")/../.."
PACKAGES=(
    qemu-system-x86 qemu-utils libvirt-daemon libvirt-daemon-driver-qemu libvirt-daemon-system libvirt-clients
    openvswitch-switch iproute2 iptables ethtool iputils-ping busybox-static cpio # hosts with real VMs
    qemu-system-arm                                                      # a guest with a PMU
    systemd-container                                                    # the units under a real systemd
    python3-fusepy libfuse2 intel-cmt-cat                                # a look-alike of resctrl; libpqos
    postgresql-15                                                        # incident history of several replicas
    radosgw ceph-mon ceph-osd                                            # a real S3 server for the lake
    openjdk-17-jre-headless                                              # what Spark runs on
    prometheus prometheus-alertmanager                                   # and promtool: rules, dashboards, webhooks
    chromium fonts-dejavu-core                                           # the fleet page in a real browser
    strace                                                               # what central does before it acknowledges
    tmux                                                                 # the terminal in which `top` is used
    lintian                                                              # what it has to say of the packages
    libvirt-dev pkg-config gcc libc6-dev python3-dev                     # to build libvirt-python
    python3-libvirt curl                                                 # what our packages recommend, and the docs use
)

missing() {
    local found
    found=" $(dpkg-query -W -f '${Package}/${db:Status-Status} ' "${PACKAGES[@]}" 2>/dev/null || true)"
    for package in "${PACKAGES[@]}"; do
        case $found in *" $package/installed "*) ;; *) echo "$package" ;; esac
    done
}

install_packages() {
    local wanted policy=/usr/sbin/policy-rc.d ours=
    mapfile -t wanted < <(missing)
    if [ ${#wanted[@]} = 0 ]; then return 0; fi
    if [ "$(id -u)" != 0 ]; then
        echo "whitepanda: integration tests need packages that only root can install: ${wanted[*]}" >&2
        return 0
    fi
    echo "whitepanda: installing ${wanted[*]} ..." >&2
    # Their services are not to be started here: the tests run their own.
    if [ ! -e "$policy" ]; then
        printf '#!/bin/sh\nexit 101\n' >"$policy"
        chmod 755 "$policy"
        ours=1
    fi
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq && apt-get install -qq -y --no-install-recommends "${wanted[@]}" >/dev/null ||
        echo "whitepanda: apt-get failed (what it printed above says why); the tests that need these will skip" >&2
    if [ -n "$ours" ]; then rm -f "$policy"; fi
}

if command -v apt-get >/dev/null && command -v dpkg-query >/dev/null; then
    install_packages
else
    echo "whitepanda: this is no Debian; integration tests that need its packages skip" >&2
fi
if pkg-config --exists libvirt 2>/dev/null && command -v gcc >/dev/null; then
    "${PYTHON:-python3}" tools/bootstrap.py host ||
        echo "whitepanda: the extra 'host' cannot be installed; the tests that need libvirt's binding skip" >&2
fi
if command -v java >/dev/null; then
    "${PYTHON:-python3}" tools/bootstrap.py spark ||
        echo "whitepanda: the extra 'spark' cannot be installed; the tests that need Spark skip" >&2
fi
