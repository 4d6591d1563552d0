"""Build the Debian packages whitepanda-agent and whitepanda-central, each with an environment of its own.

tools/build_debs.py [--out DIR] [--work DIR] [--version VERSION] [agent] [central]

On Debian 12, with python3 (3.11), dpkg and this checkout; no root, no compiler, no debhelper. The libraries are the
wheels that requirements/*.lock pin, file for file, less their own tests and headers; pip refuses a file whose hash is
not in a lock, also of what builds (build.lock). Each package has an SBOM. The packages are the same bit for bit from
the same checkout and index: file times are the commit's ($SOURCE_DATE_EPOCH where that is set),
owners, modes and order are set. How the packages are made is in docs/adr/0014-packages.md.
"""

import argparse
import gzip
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tomllib
from datetime import UTC, datetime
from pathlib import Path

import deb_sbom
import lock
from deb_copyright import copyright_text

ROOT = Path(__file__).resolve().parent.parent
DEBIAN = ROOT / "packaging" / "debian"
PIP = next((ROOT / "tools").glob("pip-*.whl"))
#: Debian 12's. Compiled libraries and .pyc files are of this one version; `Depends` in the control files says so too.
PYTHON = Path("/usr/bin/python3.11")
SIDES = ("agent", "central")
LOCKS = {"agent": ("host", "top"), "central": ("central",)}
#: Debian's own packages are linked to instead: they fit the host's library, and get its security fixes.
DEBIANS_OWN = {"agent": ("libvirt-python",), "central": ()}
LINKED = (
    "libvirt.py",
    "libvirt_qemu.py",
    "libvirtmod.cpython-311-{triplet}.so",
    "libvirtmod_qemu.cpython-311-{triplet}.so",
)
SOURCE_ONLY = "ovs"  # pure Python, but its makers ship no wheel
#: Where both are installed, central's commands include the agent's.
PRIORITIES = {"agent": 40, "central": 60}
#: The agent's defaults work; central needs certificates first.
ENABLED = {"agent": "whitepanda-agent.service", "central": ""}
#: Of packaging/: what a Prometheus and a Grafana take. Each side has its own folder, as both may be on one machine.
MONITORING = {"agent": ("prometheus/*.yml", "grafana/host.json"), "central": ("prometheus/*.yml", "grafana/*.json")}
STATE = {"agent": "/var/lib/whitepanda /var/lib/whitepanda-act", "central": "/var/lib/whitepanda-central"}
SCRIPTS = ("postinst", "prerm", "postrm")
#: Commands that central's environment does as well or better, although the agent's code has them.
EITHER = {"check-config"}
ZSTD_LEVEL = 10


def fail(text: str) -> SystemExit:
    """Return what to raise: one line and exit status 1."""
    return SystemExit(f"whitepanda: {text}")


def run(command: list[str | Path], **variables: str) -> str:
    """Run a program in a clean locale and time zone; return what it prints.

    Raises:
        SystemExit: it failed; what it said is passed on.

    """
    environment = {**os.environ, "LC_ALL": "C.UTF-8", "TZ": "UTC", **variables}
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise fail(f"{' '.join(words[:4])} failed (exit {done.returncode}):\n{done.stdout}{done.stderr}".rstrip())
    return done.stdout


def source_date() -> int:
    """Return the Unix time that all files get: $SOURCE_DATE_EPOCH, else the commit's.

    Raises:
        SystemExit: neither is there.

    """
    text = os.environ.get("SOURCE_DATE_EPOCH", "")
    if text.isdecimal():
        return int(text)
    if text:
        raise fail(f"SOURCE_DATE_EPOCH is {text!r}, which is no Unix time in seconds")
    found = subprocess.run(
        ["git", "-C", ROOT, "log", "-1", "--format=%ct"], capture_output=True, text=True, check=False
    )
    if found.returncode:
        raise fail(f"{ROOT} is no git checkout; set SOURCE_DATE_EPOCH to the release's Unix time in seconds")
    return int(found.stdout)


def default_version() -> str:
    """Return pyproject's version as Debian's first revision of it."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"] + "-1"


def commands_of_agent() -> list[str]:
    """Return the commands that work best in the agent's environment, which has the host's libraries."""
    points = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["entry-points"]
    return sorted(n for n, v in points["whitepanda.commands"].items() if v.startswith("agent.") and n not in EITHER)


class Package:
    """One package on its way: `stage` makes its tree in `folder`, `pack` the file from that."""

    def __init__(self, side: str, folder: Path, date: int) -> None:
        self.side = side
        self.name = f"whitepanda-{side}"
        self.tree = folder / self.name
        self.date = date
        self.home = f"opt/whitepanda/{side}"
        self.site = self.tree / self.home / "lib/python3.11/site-packages"
        self.sbom = self.tree / f"usr/share/whitepanda/{side}/sbom.cdx.json"

    def stage(self) -> None:
        """Remake the tree of files."""
        shutil.rmtree(self.tree, ignore_errors=True)
        self._environment()
        self._program()
        self._units()
        self._guides()
        self._documents()
        self._monitoring()
        self._compile()

    def _write(self, place: str, text: str) -> None:
        path = self.tree / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def _copy(self, source: Path, place: str) -> None:
        path = self.tree / place
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, path)

    def _fill(self, template: str) -> str:
        """Return a template of packaging/debian with this package's words in place of @WORDS@."""
        words = {
            "PACKAGE": self.name,
            "SIDE": self.side,
            "PRIORITY": str(PRIORITIES[self.side]),
            "UNITS": " ".join(self._unit_names()),
            "ENABLED": ENABLED[self.side],
            "STATE": STATE[self.side],
            "AGENT_COMMANDS": " | ".join(commands_of_agent()),
        }
        text = (DEBIAN / template).read_text(encoding="utf-8")
        return re.sub(r"@([A-Z_]+)@", lambda found: words[found[1]], text)

    def _environment(self) -> None:
        """Install the wheels that the lock pins, and this checkout, with the bundled pip, which stays outside."""
        self._write(
            f"{self.home}/pyvenv.cfg", "home = /usr/bin\ninclude-system-site-packages = false\nversion = 3.11\n"
        )
        self.site.mkdir(parents=True)
        python = self.tree / self.home / "bin" / "python3"
        python.parent.mkdir()
        python.symlink_to(PYTHON)
        left_out = DEBIANS_OWN[self.side]
        pins = {pin for extra in LOCKS[self.side] for pin in lock.read(extra) if pin.name not in left_out}
        pinned = self.tree.parent / f"{self.name}.lock"
        pinned.write_text(lock.render(sorted(pins, key=lambda pin: (pin.name, pin.marker))), encoding="utf-8")
        tools = self.tree.parent / f"{self.name}.tools"
        shutil.rmtree(tools, ignore_errors=True)
        pip = [python, "-IB", f"{PIP}/pip", "--disable-pip-version-check", "install", "-qq"]
        pip += ["--no-compile", "--no-deps", "--no-warn-script-location"]
        locked = [*pip, "--require-hashes", "--only-binary", ":all:"]
        run([*locked, "--target", tools, "-r", ROOT / "requirements" / "build.lock"])
        # What pip starts to build a wheel finds the locked tools by PYTHONPATH, which pip itself ignores (-I).
        building = {"SOURCE_DATE_EPOCH": str(self.date), "PYTHONPATH": str(tools)}
        report = self.tree.parent / f"{self.name}.report.json"
        run([*locked, "--no-build-isolation", "--no-binary", SOURCE_ONLY, "--report", report, "-r", pinned], **building)
        run([*pip, "--no-index", "--no-build-isolation", ROOT], **building)
        for path in python.parent.iterdir():  # other libraries' programs, whose first line has this folder's name
            if path != python:
                path.unlink()
        for place in self.site.glob("*.dist-info"):
            (place / "direct_url.json").unlink(missing_ok=True)  # where the checkout was
            (place / "RECORD").unlink(missing_ok=True)  # dpkg keeps the list; pip's has what is removed below
        files = deb_sbom.installed(report)
        self._write(str(self.sbom.relative_to(self.tree)), deb_sbom.sbom(self.name, self.site, files, self.date))
        self._prune()
        if left_out:
            triplet = f"{platform.machine()}-linux-gnu"
            for name in LINKED:
                file = name.format(triplet=triplet)
                (self.site / file).symlink_to(f"/usr/lib/python3/dist-packages/{file}")

    def _prune(self) -> None:
        """Remove what only builds and tests of the libraries need: their tests, C headers, static libraries."""
        for folder in sorted(self.site.rglob("*"), reverse=True):
            if folder.is_dir() and folder.name in {"tests", "include", "__pycache__"}:
                shutil.rmtree(folder)
        for pattern in ("*.a", "*.pxd", "*.pyx", "*.h", "*.lib"):
            for path in self.site.rglob(pattern):
                path.unlink()

    def _program(self) -> None:
        home = f"/{self.home}"
        program = f"#!{home}/bin/python3 -IB\nfrom agent.start import main\n\nmain()\n"
        self._write(f"{self.home}/bin/whitepanda", program)
        self._write(f"{self.home}/libexec/whitepanda", self._fill("launcher.sh"))

    def _unit_names(self) -> list[str]:
        """Return which units of systemd/ are this package's: central's own, or all others."""
        found = sorted(path.name for path in (ROOT / "systemd").glob("whitepanda-*.*"))
        return [name for name in found if ("central" in name) == (self.side == "central")]

    def _units(self) -> None:
        old, new = "/opt/whitepanda/bin/", f"/{self.home}/bin/"
        for name in self._unit_names():
            text = (ROOT / "systemd" / name).read_text(encoding="utf-8")
            self._write(f"lib/systemd/system/{name}", text.replace(old, new))
        lines = (ROOT / "systemd" / "sysusers.conf").read_text(encoding="utf-8").splitlines()
        own = [x for x in lines if not x.startswith("#") and ("whitepanda-central" in x) == (self.side == "central")]
        self._write(f"usr/lib/sysusers.d/{self.name}.conf", "".join(f"{line}\n" for line in own))
        tmpfiles = (ROOT / "systemd" / "tmpfiles.conf").read_text(encoding="utf-8")
        self._write(f"usr/lib/tmpfiles.d/{self.name}.conf", tmpfiles)
        self._write(
            f"etc/whitepanda/{self.side}.toml", (ROOT / "systemd" / f"{self.side}.toml").read_text(encoding="utf-8")
        )
        (self.tree / "etc/whitepanda/tls").mkdir()

    def _guides(self) -> None:
        """Take docs/ whole, so that none of its links leads nowhere."""
        docs = ROOT / "docs"
        for path in sorted(docs.rglob("*")):
            if path.is_file() and path.suffix != ".toml":  # the site's navigation
                self._copy(path, f"usr/share/doc/{self.name}/{path.relative_to(docs)}")

    def _documents(self) -> None:
        doc = f"usr/share/doc/{self.name}"
        self._write(f"{doc}/copyright", copyright_text(self.site, f"/{self.home}/lib/python3.11/site-packages"))
        self._zip(f"{doc}/changelog.gz", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
        overrides = DEBIAN / f"{self.name}.lintian-overrides"
        self._write(f"usr/share/lintian/overrides/{self.name}", overrides.read_text(encoding="utf-8"))
        pages = self.tree.parent / f"{self.name}.pages"
        shutil.rmtree(pages, ignore_errors=True)
        python = self.tree / self.home / "bin/python3"
        when = datetime.fromtimestamp(self.date, UTC).date().isoformat()
        run([python, "-IB", ROOT / "tools" / "deb_pages.py", pages, self.side, when])
        for page in sorted(pages.glob("*.1")):
            # The general page and the completion are either package's, by the alternatives.
            place = f"{self.home}/share" if page.name == "whitepanda.1" else "usr/share/man/man1"
            self._zip(f"{place}/{page.name}.gz", page.read_text(encoding="utf-8"))
        self._write(f"{self.home}/share/bash-completion", (pages / "completion").read_text(encoding="utf-8"))

    def _monitoring(self) -> None:
        packaging = ROOT / "packaging"
        for pattern in MONITORING[self.side]:
            for path in sorted(packaging.glob(pattern)):
                self._copy(path, f"usr/share/whitepanda/{self.side}/{path.relative_to(packaging)}")

    def _zip(self, place: str, text: str) -> None:
        path = self.tree / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(text.encode(), 9, mtime=0))

    def _compile(self) -> None:
        """Compile everything once, here: nobody may write below /opt later, and dpkg knows each file."""
        # In one process and a fixed order, and strings hashed alike: .pyc files depend on both.
        command = [PYTHON, "-IB", "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash"]
        run([*command, "-s", self.tree, "-p", "/", self.tree / self.home / "lib"], PYTHONHASHSEED="0")

    def pack(self, out: Path, version: str) -> Path:
        """Write the package file of this version from the staged tree; return its path."""
        control = self.tree / "DEBIAN"
        shutil.rmtree(control, ignore_errors=True)
        self._changelog(version)
        self.sbom.write_text(deb_sbom.of_version(self.sbom.read_text("utf-8"), version), encoding="utf-8")
        files = sorted(p for p in self.tree.rglob("*") if p.is_file() and not p.is_symlink())
        kib = sum(-(-path.stat().st_size // 1024) for path in files)
        arch = run(["dpkg", "--print-architecture"]).strip()
        text = self._fill(f"{self.name}.control")
        head, _, rest = text.partition("\n")
        self._write(
            "DEBIAN/control", f"{head}\nVersion: {version}\nArchitecture: {arch}\nInstalled-Size: {kib}\n{rest}"
        )
        for script in SCRIPTS:
            self._write(f"DEBIAN/{script}", self._fill(f"{script}.sh"))
        self._write("DEBIAN/conffiles", f"/etc/whitepanda/{self.side}.toml\n")
        sums = [
            f"{hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()}  {path.relative_to(self.tree)}\n"
            for path in files
            if not path.is_relative_to(self.tree / "etc")
        ]
        self._write("DEBIAN/md5sums", "".join(sums))
        self._modes()
        self._times()
        out.mkdir(parents=True, exist_ok=True)
        target = out / f"{self.name}_{version}_{arch}.deb"
        command = ["dpkg-deb", "--root-owner-group", "-Zzstd", f"-z{ZSTD_LEVEL}", "--threads-max=1"]
        run([*command, "--build", self.tree, target], SOURCE_DATE_EPOCH=str(self.date))
        return target

    def _changelog(self, version: str) -> None:
        when = datetime.fromtimestamp(self.date, UTC).strftime("%a, %d %b %Y %H:%M:%S +0000")
        maintainer = re.search(r"(?m)^Maintainer: (.*)$", (DEBIAN / f"{self.name}.control").read_text("utf-8"))
        if maintainer is None:
            raise fail(f"{self.name}.control has no Maintainer")
        self._zip(
            f"usr/share/doc/{self.name}/changelog.Debian.gz",
            f"{self.name} ({version}) unstable; urgency=medium\n\n"
            "  * Built from the source tree; what has changed there is in changelog.gz.\n\n"
            f" -- {maintainer[1]}  {when}\n",
        )

    def _modes(self) -> None:
        """Set each mode: what the building user's umask and the wheels' makers chose is not for others' hosts."""
        for path in [self.tree, *self.tree.rglob("*")]:
            if not path.is_symlink():
                runs = path.is_dir() or path.parent.name in {"bin", "libexec"} or path.name in SCRIPTS
                path.chmod(0o755 if runs else 0o644)

    def _times(self) -> None:
        for path in [*self.tree.rglob("*"), self.tree]:
            os.utime(path, (self.date, self.date), follow_symlinks=False)


def main(arguments: list[str]) -> int:
    """Do what the module's text says."""
    parser = argparse.ArgumentParser(description="Build whitepanda's Debian packages.")
    parser.add_argument("sides", nargs="*", metavar="SIDE", help="agent, central; both if none is named")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder for the packages")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "deb", help="folder for their trees")
    parser.add_argument("--version", default=default_version(), help="Debian version")
    asked = parser.parse_args(arguments)
    for side in asked.sides:
        if side not in SIDES:
            raise fail(f"there is no package {side!r}; there are {' and '.join(SIDES)}")
    if not re.fullmatch(r"[0-9][A-Za-z0-9.+~]*(-[A-Za-z0-9.+~]+)?", asked.version):
        raise fail(f"{asked.version!r} is no version of a Debian package, such as 0.1.0-1")
    if not PYTHON.exists():
        raise fail(f"building needs {PYTHON} (Debian 12's python3); this is {platform.platform()}")
    if shutil.which("dpkg-deb") is None:
        raise fail("building needs dpkg-deb (Debian: dpkg)")
    date = source_date()
    for side in asked.sides or SIDES:
        package = Package(side, asked.work.resolve(), date)
        package.stage()
        path = package.pack(asked.out, asked.version)
        print(f"{path}  {path.stat().st_size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except OSError as error:
        raise fail(f"cannot build: {error}") from error
