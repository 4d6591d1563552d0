"""A machine with a real systemd that never had the product, and dpkg on it."""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.support.systemd_machine import Machine, booted


@contextmanager
def fresh_machine(folder: Path, *needs: str, mounts: Mapping[str, Path]) -> Iterator[Machine]:
    """Boot it; each folder of `mounts` is /srv/NAME there. `needs` is as of `booted`."""
    prepare = ["rm -rf usr/sbin/policy-rc.d opt/whitepanda etc/whitepanda"]
    for name, path in mounts.items():
        prepare += [f"mkdir -p srv/{name}", f"mount --bind {path} srv/{name}"]
    (folder / "prepare").write_text("\n".join(prepare) + "\n", encoding="utf-8")
    (folder / "root").mkdir()
    with booted(folder, *needs) as machine:
        yield machine


class Fresh:
    """The machine as its administrator sees it.

    Args:
        machine: booted by `fresh_machine`.
        debs: the folder that is /srv/debs there, for `install`.

    """

    def __init__(self, machine: Machine, debs: Path) -> None:
        self.machine = machine
        self.debs = debs
        self.run = machine.run

    def install(self, deb: Path) -> str:
        """As apt does where nobody is asked: files that the administrator has changed stay."""
        shutil.copy(deb, self.debs)
        return self.run("dpkg", "--force-confdef", "--force-confold", "-i", f"/srv/debs/{deb.name}", timeout_s=300)

    def dpkg(self, *words: str) -> str:
        """Run dpkg."""
        return self.run("dpkg", *words, timeout_s=120)

    def write(self, path: str, text: str) -> None:
        """Write a file there."""
        self.run("tee", path, stdin=text)

    def there(self, path: str) -> bool:
        """Whether a path is there; it may have * in it."""
        return self.run("sh", "-c", f"test -e {path} && echo yes", check=False).strip() == "yes"

    def enabled(self, unit: str) -> str:
        """Return what systemd says of a unit: enabled, disabled."""
        return self.run("systemctl", "is-enabled", unit, check=False).strip()
