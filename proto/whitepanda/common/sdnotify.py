"""systemd's readiness and watchdog protocol (sd_notify(3)): a datagram to $NOTIFY_SOCKET."""

import os
import socket


def notify(state: str) -> bool:
    """Send `state` (such as "READY=1") to the service manager. False if there is none; never raises."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return False
    target = "\0" + address[1:] if address.startswith("@") else address
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
            sock.settimeout(0.05)  # a manager that reads nothing must not stop us
            sock.connect(target)
            sock.sendall(state.encode())
    except OSError:
        return False
    return True


def watchdog_interval_s() -> float | None:
    """How often to send "WATCHDOG=1" (half of what the manager allows), or None if no watchdog is set."""
    usec = os.environ.get("WATCHDOG_USEC", "")
    if not usec.isdigit() or os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    return int(usec) / 2e6
