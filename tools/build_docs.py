"""Make the site of docs/ and check it: warnings of Sphinx, dead links, missing anchors, outside requests.

python tools/build_docs.py [--docs FOLDER] [--out FOLDER]      by default docs and build/site

The site is made beside the old one and takes its place only if nothing is wrong. Needs the extra `docs`.
"""

import argparse
import importlib.util
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OUR_MARK = "objects.inv"  # what Sphinx leaves in each site of its own


def build(docs: Path, out: Path) -> int:
    """Make the site of a folder of pages; the exit code of what failed, else 0."""
    if out.exists() and any(out.iterdir()) and not (out / OUR_MARK).exists():
        print(f"build_docs: {out} is not empty and no whitepanda site; name another folder", file=sys.stderr)
        return 2
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".site-", dir=out.parent) as work:
        made = Path(work) / "site"
        strict = ["--quiet", "--fail-on-warning", "--nitpicky", "--fresh-env"]
        steps = (
            [*("-m", "sphinx", "--builder", "html", *strict, "--conf-dir"), ROOT / "tools" / "site", docs, made],
            [ROOT / "tools" / "check_site.py", made],
        )
        for step in steps:
            code = subprocess.run([sys.executable, *map(str, step)], check=False).returncode
            if code:
                print(f"build_docs: {docs} is not published; the reasons are above", file=sys.stderr)
                return code
        shutil.rmtree(made / ".doctrees")
        if out.exists():
            shutil.rmtree(out)
        made.rename(out)
        out.chmod(0o755)
    return 0


def main(arguments: list[str]) -> int:
    """Do what the module's docstring says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--docs", type=Path, default=ROOT / "docs")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "site")
    chosen = parser.parse_args(arguments)
    if importlib.util.find_spec("sphinx") is None:
        print("build_docs: the extra `docs` is not installed; use `make docs`", file=sys.stderr)
        return 2
    if not (chosen.docs / "index.md").is_file():
        print(f"build_docs: {chosen.docs} has no index.md", file=sys.stderr)
        return 2
    code = build(chosen.docs.resolve(), chosen.out.resolve())
    if not code:
        print(f"{chosen.out / 'index.html'}")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
