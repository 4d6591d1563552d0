"""Moves the house: each module to its room by git mv, and each name of what moved, everywhere.

    .venv/bin/python tools/rooms/move.py --check     modules and tests without a place, rows whose files are gone
    .venv/bin/python tools/rooms/move.py [--commit]  moves; with --commit one commit per room, the last one without this folder

Run it in the root of a clean checkout with the checkout's own venv (ruff is taken from beside the Python). Its data lies beside
it. A room whose old files are gone is left out, so that it can be run again.
"""
from __future__ import annotations
import argparse, ast, collections, os, re, shutil, subprocess, sys, time
from pathlib import Path
HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import splits as S
import fixes as F
RUFF = str(Path(sys.executable).parent / "ruff")
#: What stays at the top of its package.
STAYS = {"agent": "config clock daemon host_info start", "collector": "base registry proc_parse",
         "central": "config daemon own_threads pki revoked worker_process", "bench": ""}
TESTS_STAY = {"agent": "agent_config daemon every_column host_info linear_work shipped_config source_settings start",
              "central": "own_threads central_config identity pki revoked", "collector": "kept_files proc_parse registry slow_answers"}
#: Folders that end; their remaining files (__init__) are deleted.
ENDS = {"central/fleet": "central/upgrades", "central/runtime": "central/runtimes", "central/synth": "central/traces/generator",
        "central/evaluation": "central/traces", "central/webhooks": "central/incidents"}
SKIP = ("proto/whitepanda/v1/", "requirements/", "CHANGELOG.md", "docs/images/", "central/page/static/", "tests/fixtures/", "tools/rooms/")
sh = lambda *a, **k: subprocess.run(a, check=True, text=True, capture_output=True, **k).stdout
git = lambda *a: sh("git", *a)
def rooms():
    out = {}
    for line in (HERE / "rooms.txt").read_text().splitlines():
        line = line.split("#")[0].strip()
        if not line: continue
        room, _, items = line.partition(":"); pkg = room.split("/")[0]
        out[room] = {f"{pkg}/{o}.py": f"{room}/{n or o.split('/')[-1]}.py" for o, _, n in (i.partition("=") for i in items.split())}
    return out
def tests():
    return dict(l.split() for l in (HERE / "tests.txt").read_text().splitlines() if l.strip())
dotted = lambda path: path[:-3].replace("/", ".").removesuffix(".__init__")
filed = lambda mod: mod.replace(".", "/") + ".py"
def tracked():
    return [f for f in git("ls-files").splitlines() if os.path.isfile(f) and not f.startswith(SKIP)]
TEXT = (".py", ".md", ".toml", ".service", ".sh", ".yml", ".json", ".cfg", ".txt", ".control", "Makefile", "run", "Containerfile", ".lintian-overrides", ".conf")

# ---------------------------------------------------------------- rewriting
TOKENS = re.compile(r'"""[\s\S]*?"""|"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\'|#[^\n]*')
class Names:
    """What a stage renames: paths (of files), modules (dotted), symbols ((module, name) -> module), folders."""
    def __init__(self, paths, symbols=(), folders=()):
        self.paths = dict(paths); self.modules = {dotted(a): dotted(b) for a, b in self.paths.items()}
        self.symbols = dict(symbols); self.folders = dict(folders)
        self.packages = {a.replace("/", "."): b.replace("/", ".") for a, b in self.folders.items()}
        self.bench = {a.split(".")[1]: (a, b) for a, b in self.modules.items() if a.startswith("bench.")}
        dots = dict(self.packages) | dict(self.modules)
        dots |= {f"{m}.{n}": f"{t}.{n}" for (m, n), t in self.symbols.items()}
        self.dots = dots
        # A sentence may end behind a name; a key of a setting (agent.tick_s) is no module.
        alt = lambda d: "|".join(re.escape(k) for k in sorted(d, key=len, reverse=True))
        # a module which becomes a room of its name: what follows is a module of that room already
        self._dot = re.compile(rf"(?<![\w./\\-])({alt(dots)})(?![\w-])(?!\.(?:toml|py|key|crt|sock|log|json|service|csv|example)\b)") if dots else None
        self._path = re.compile(rf"(?<![\w./-])({alt(self.paths)})(?!\w)") if self.paths else None
        self._fold = re.compile(rf"(?<![\w./-])({alt(self.folders)})(?=/?[`'\"\s),;:]|/?$|/\*)", re.M) if self.folders else None
        stems = {p[:-3] for p in self.paths}
        self._any = re.compile("|".join(re.escape(Path(k).name if "/" in k else k.split(".")[-1]) for k in {*self.paths, *self.folders, *dots})) if dots else None
        self._parts = re.compile(r'"(agent|central|collector|bench|tests)"((?: / "[\w.-]+")+)')
    def touches(self, text): return bool(self._any and self._any.search(text))
    def text(self, text, bare=False, dots=True):
        def parts(m):
            old = "/".join([m[1], *re.findall(r'"([^"]+)"', m[2])])
            new = self.paths.get(old) or self.folders.get(old)
            return m[0] if new is None else " / ".join(f'"{p}"' for p in new.split("/"))
        text = self._parts.sub(parts, text)
        if self.bench:  # commands of benchmarks
            text = re.sub(r"(?<=python )bench/(\w+)\.py", lambda m: "-m " + self.bench[m[1]][1].replace(".", "\0") if m[1] in self.bench else m[0], text)
            text = re.sub(r"(?<=\$\(PY\) )bench/(\w+)\.py", lambda m: "-m " + self.bench[m[1]][1].replace(".", "\0") if m[1] in self.bench else m[0], text)
        if bare: text = "\n".join(self._bare(l) for l in text.split("\n"))
        if self._path: text = self._path.sub(lambda m: self.paths[m[1]], text)
        if self._fold: text = self._fold.sub(lambda m: self.folders[m[1]], text)
        if self._dot and dots: text = self._dot.sub(lambda m: self.dots[m[1]], text)
        return text.replace("\0", ".") if dots else text
    def code(self, text, plain):
        """Of Python code between imports: module names only in strings and comments, as `central.lake` may be an attribute."""
        if plain: return self.text(text)
        text = self.text(text, dots=False)
        return TOKENS.sub(lambda m: self.text(m[0]), text).replace("\0", ".")
    def _bare(self, line):
        """`central/ingest.py`, `greeting.py`: the second is beside the first."""
        old_dir = new_dir = None
        def one(m):
            nonlocal old_dir, new_dir
            name = m[1]
            if "/" in name:
                if name.endswith("/"): old_dir = new_dir = name.rstrip("/"); return m[0]
                old_dir = name.rpartition("/")[0]; new = self.paths.get(name, name); new_dir = new.rpartition("/")[0]
                return f"`{new}`"
            if old_dir is None or not name.endswith(".py"): return m[0]
            new = self.paths.get(f"{old_dir}/{name}")
            if new is None:
                if old_dir == new_dir or not os.path.exists(f"{old_dir}/{name}"): return m[0]
                new_dir = old_dir; return f"`{old_dir}/{name}`"
            same = new.rpartition("/")[0] == new_dir; new_dir = new.rpartition("/")[0]
            return f"`{new.rpartition('/')[2]}`" if same else f"`{new}`"
        return re.sub(r"`((?:[\w-]+/)*[\w-]*(?:\.py|/))`", one, line)

ALIASED: list[str] = []
def rewrite_python(path, text, names, old_path):
    tree = ast.parse(text)
    lines = text.splitlines(keepends=True); starts = [0]
    data = text.encode(); offs = [0]
    for l in data.splitlines(keepends=True): offs.append(offs[-1] + len(l))
    at = lambda line, col: offs[line - 1] + col
    edits = []; renames = {}
    bench_file = path.startswith("bench/"); bench_test = 'ROOT / "bench"' in text or old_path in names.paths and names.paths[old_path].startswith("tests/bench/")
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            module = node.module
            if (bench_file or bench_test) and module in names.bench: module = names.bench[module][0]
            targets = collections.OrderedDict(); changed = module != node.module
            for a in node.names:
                sub = f"{module}.{a.name}"
                if (module, a.name) in names.symbols: t, n, asn = names.symbols[module, a.name], a.name, a.asname; changed = True
                elif sub in names.modules:
                    new = names.modules[sub]; t, _, n = new.rpartition("."); asn = a.asname; changed = True
                    if asn is None and n != a.name: renames[a.name] = n; asn = ("?", a.name)
                    elif asn == n: asn = None
                elif sub in names.packages:
                    new = names.packages[sub]; t, _, n = new.rpartition("."); asn = a.asname or (a.name if n != a.name else None); changed = True
                elif module in names.modules: t, n, asn = names.modules[module], a.name, a.asname; changed = True
                else: t, n, asn = module, a.name, a.asname
                targets.setdefault(t, []).append((n, asn))
            if changed: edits.append((at(node.lineno, node.col_offset), at(node.end_lineno, node.end_col_offset), node, targets))
            else: edits.append((at(node.lineno, node.col_offset), at(node.end_lineno, node.end_col_offset), node, None))
        elif isinstance(node, ast.Import):
            out, changed = [], False
            for a in node.names:
                if (bench_file or bench_test) and a.name in names.bench:
                    t, _, n = names.bench[a.name][1].rpartition("."); keep = a.asname or a.name
                    out.append(f"from {t} import {n}" + (f" as {keep}" if keep != n else "")); changed = True
                elif a.name in names.modules:
                    new = names.modules[a.name]; changed = True
                    if a.asname:
                        t, _, n = new.rpartition("."); out.append(f"from {t} import {n}" + (f" as {a.asname}" if a.asname != n else ""))
                    else: out.append(f"import {new}")
                else: out.append(f"import {a.name}" + (f" as {a.asname}" if a.asname else ""))
            if changed: edits.append((at(node.lineno, node.col_offset), at(node.end_lineno, node.end_col_offset), node, out))
    # usages of modules whose last name changes
    done = {}
    for old, new in renames.items():
        taken = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)} | {n.arg for n in ast.walk(tree) if isinstance(n, ast.arg)}
        bound = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)} | {n.arg for n in ast.walk(tree) if isinstance(n, ast.arg)}
        infs = {id(x) for n in ast.walk(tree) if isinstance(n, ast.JoinedStr) for x in ast.walk(n)}
        uses = [n for n in ast.walk(tree) if isinstance(n, ast.Name) and n.id == old]
        imported = {a.asname or a.name for n in ast.walk(tree) if isinstance(n, (ast.Import, ast.ImportFrom)) for a in n.names}
        if old in bound or new in taken or new in imported or any(id(n) in infs for n in uses) or list(renames.values()).count(new) > 1:
            done[old] = f" as {old}"; ALIASED.append(f"{path}: {new} as {old}")
        else:
            done[old] = ""
            for n in uses: edits.append((at(n.lineno, n.col_offset), at(n.end_lineno, n.end_col_offset), None, new))
    edits.sort(key=lambda e: e[0])
    plain = any(isinstance(n, ast.Import) and any("." in a.name and a.asname is None and a.name in names.modules for a in n.names) for n in ast.walk(tree))
    out, pos = [], 0
    for begin, end, node, what in edits:
        if begin < pos: continue
        out.append(names.code(data[pos:begin].decode(), plain))
        if what is None: out.append(data[begin:end].decode())
        elif isinstance(what, str): out.append(what)
        elif isinstance(what, list): out.append(("\n" + " " * node.col_offset).join(what))
        else:
            if len(what) == 1 and (t := next(iter(what))) != dotted(path) and [(a.name, a.asname) for a in node.names] == what[t]:
                out.append(data[begin:end].decode().replace(f"from {node.module} import", f"from {t} import", 1)); pos = end; continue
            stmts = []
            for t, ns in what.items():
                if t == dotted(path): continue  # names that come into this very module
                items = []
                for n, asn in ns:
                    if isinstance(asn, tuple): items.append(n + done[asn[1]])
                    else: items.append(n + (f" as {asn}" if asn else ""))
                flat = f"from {t} import {', '.join(items)}"
                if len(flat) + node.col_offset > 108: flat = f"from {t} import (\n" + "".join(f"{' ' * (node.col_offset + 4)}{i},\n" for i in items) + " " * node.col_offset + ")"
                stmts.append(flat)
            # a comment behind the statement (noqa) belongs to each of its parts
            rest = data[end:data.find(b"\n", end)].decode(); note = rest if rest.lstrip().startswith("#") else ""
            out.append((note + "\n" + " " * node.col_offset).join(stmts))
        pos = end
    out.append(names.code(data[pos:].decode(), plain))
    new = "".join(out)
    if names.bench and (old_path.startswith("bench/") or bench_test):
        new = re.sub(r"^sys\.path\.insert\(0, .*\)\n|^sys\.path\[:0\] = .*\n", "", new, flags=re.M)
        body = ast.parse(new).body; last = max((i for i, n in enumerate(body) if isinstance(n, (ast.Import, ast.ImportFrom))), default=0)
        if all(isinstance(n, (ast.Import, ast.ImportFrom, ast.Expr)) for n in body[:last]): new = re.sub(r"  # noqa: E402.*", "", new)
    return new
def depth(text, by, least=2):
    def fix(m):
        if m[2].startswith(".parents"): n = int(m[3]) + 1
        else: n = m[2].count(".parent")
        if n < least: return m[0]
        return f"{m[1]}.parents[{n - 1 + by}]"
    return re.sub(r"(Path\(__file__\)(?:\.resolve\(\))?)((?:\.parent(?!s))+|\.parents\[(\d+)\])", fix, text)

def rewrite_all(names, moved_now):
    back = {b: a for a, b in moved_now.items()}
    n = 0
    for f in tracked():
        if not f.endswith(TEXT) and "." in Path(f).name: continue
        try: text = Path(f).read_text(encoding="utf-8")
        except UnicodeDecodeError: continue
        new = text
        if names.touches(text) or f in back:
            if f.endswith(".py"):
                new = rewrite_python(f, text, names, back.get(f, f))
                by = f.count("/") - back[f].count("/") if f in back else 0
                if by and f.startswith("tests/unit/"):  # helpers stay at the top of the package
                    new = re.sub(r"Path\(__file__\)\.with_name\(([^()]+)\)", rf"Path(__file__).parents[{by}] / \1", depth(new, by, 1))
                elif by: new = depth(new, by)
            else: new = names.text(text, bare=f.endswith(".md"))
        if new != text: Path(f).write_text(new, encoding="utf-8"); n += 1
    return n

# ---------------------------------------------------------------- symbols that leave a module
def split(source, wanted, target, doc):
    src = Path(source); text = src.read_text(); tree = ast.parse(text); lines = text.splitlines(keepends=True)
    name_of = lambda n: getattr(n, "name", None) or (n.targets[0].id if isinstance(n, ast.Assign) and isinstance(n.targets[0], ast.Name) else n.target.id if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name) else None)
    blocks = []
    for node in tree.body:
        if name_of(node) not in wanted: continue
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
        while lines[first - 2].startswith("#") or first > 2 and lines[first - 2].startswith("#:"): first -= 1
        blocks.append((first, node.end_lineno, node))
    found = {name_of(n) for _, _, n in blocks}
    if missing := set(wanted) - found: print(f"  split: {source} lacks {sorted(missing)}")
    used = {x.id for _, _, n in blocks for x in ast.walk(n) if isinstance(x, ast.Name)}
    here = {name_of(n) for n in tree.body} - {None} - found
    if used & here: print(f"  split: {source} -> {target}: these need {sorted(used & here)} of the old module")
    imports = [n for n in tree.body if isinstance(n, (ast.Import, ast.ImportFrom))]
    typing = [n for n in tree.body if isinstance(n, ast.If) and getattr(n.test, "id", "") == "TYPE_CHECKING"]
    bound = lambda n: {a.asname or a.name.split(".")[0] for a in n.names}
    tmod = dotted(target); public = sorted(x for x in found if not x.startswith("_"))
    code = ["".join(lines[a - 1:b]) for a, b, n in blocks if not hasattr(n, "name")], ["".join(lines[a - 1:b]) for a, b, n in blocks if hasattr(n, "name")]
    tfile = Path(target)
    if not tfile.exists():
        tfile.parent.mkdir(parents=True, exist_ok=True)
        imp = "".join(ast.get_source_segment(text, n) + "\n" for n in [*imports, *typing])
        allof = "__all__ = [" + ", ".join(f'"{x}"' for x in public) + "]\n"
        tfile.write_text(f'"""{doc}"""\n\n{imp}\n{allof}\n' + "".join(code[0]) + "\n\n" + "\n\n".join(code[1]))
        git("add", target)
    else:
        old = tfile.read_text(); ttree = ast.parse(old); have = set().union(*[bound(n) for n in ttree.body if isinstance(n, (ast.Import, ast.ImportFrom))] or [set()])
        need = [n for n in imports if bound(n) & used and not bound(n) & used <= have and getattr(n, "module", "") != tmod]
        tl = old.splitlines(keepends=True)
        last = max([n.end_lineno for n in ttree.body if isinstance(n, (ast.Import, ast.ImportFrom))] or [ttree.body[0].end_lineno])
        firstdef = next((n for n in ttree.body if isinstance(n, (ast.FunctionDef, ast.ClassDef))), None)
        at = (min([firstdef.lineno, *(d.lineno for d in firstdef.decorator_list)]) - 1) if firstdef else len(tl)
        while firstdef and tl[at - 1].startswith("#"): at -= 1
        new = "".join(tl[:last]) + "".join(ast.get_source_segment(text, n) + "\n" for n in need) + "".join(tl[last:at]) + "".join(code[0]) + ("\n\n" if code[0] else "") + "".join(tl[at:])
        new += "".join("\n\n" + c for c in code[1])
        new = re.sub(r"(__all__ = \[)(.*?)(\])", lambda m: m[1] + ", ".join(f'"{x}"' for x in sorted({*re.findall(r'"(\w+)"', m[2]), *public})) + m[3], new, count=1, flags=re.S)
        tfile.write_text(new)
    drop = set()
    for a, b, _ in blocks: drop.update(range(a, b + 1))
    rest = "".join(l for i, l in enumerate(lines, 1) if i not in drop)
    rest = re.sub(r"(__all__ = \[)(.*?)(\])", lambda m: m[1] + ", ".join(f'"{x}"' for x in sorted({*re.findall(r'"(\w+)"', m[2])} - set(public))) + m[3], rest, count=1, flags=re.S)
    still = {x.id for x in ast.walk(ast.parse(rest)) if isinstance(x, ast.Name)} & found
    if still:
        rl = rest.splitlines(keepends=True); last = max(n.end_lineno for n in ast.parse(rest).body if isinstance(n, (ast.Import, ast.ImportFrom)))
        rest = "".join(rl[:last]) + f"from {tmod} import {', '.join(sorted(still))}\n" + "".join(rl[last:])
    src.write_text(rest)
    sh(RUFF, "check", "-q", "--fix-only", source, target)

# ---------------------------------------------------------------- stages
def literal(stage):
    for file, old, new in F.FIXES.get(stage, ()):
        p = Path(file)
        if not p.exists(): print(f"  fix: no {file}"); continue
        text = p.read_text()
        if old in new and new in text: continue  # done before
        if old not in text:
            if new not in text: print(f"  fix: {file} lacks {old[:60]!r}")
            continue
        p.write_text(text.replace(old, new))
def tidy():
    fs = [f for f in {*git("diff", "--name-only", "HEAD").splitlines()} if f.endswith(".py") and os.path.exists(f)]
    for i in range(0, len(fs), 200):
        subprocess.run([RUFF, "check", "-q", "--fix-only", *fs[i:i + 200]], check=False)
        subprocess.run([RUFF, "format", "-q", *fs[i:i + 200]], check=False)
def wrap(quiet=False):
    """Comments and docstrings that became longer than a line: their last words go to the next line of the paragraph."""
    left = []
    for _ in range(12):
        out = subprocess.run([RUFF, "check", "--select", "E501", "--output-format", "concise", "."], text=True, capture_output=True).stdout
        rows = sorted({(l.split(":")[0], int(l.split(":")[1])) for l in out.splitlines() if ": E501" in l}, reverse=True)
        left = []
        for f, n in rows:
            lines = Path(f).read_text().split("\n"); line = lines[n - 1]
            indent = re.match(r"\s*(?:#:? )?", line)[0]
            if line.lstrip().startswith(('"""', "'", '"')) and line.count('"""') == 2 or not indent.strip() and not line.strip()[:1].isalpha() and not line.strip()[:1] in "`-(":
                left.append(f"{f}:{n}"); continue
            if line.lstrip().startswith('"""'): left.append(f"{f}:{n}"); continue
            cut = line.rfind(" [--" if line.lstrip().startswith("python -m ") else " ", 0, 118)
            if cut <= len(indent): left.append(f"{f}:{n}"); continue
            head, tail = line[:cut], line[cut + 1:]
            nxt = lines[n] if n < len(lines) else ""
            ni = re.match(r"\s*(?:#:? )?", nxt)[0]
            more = ni if ni.startswith(indent) and nxt.strip() and len(ni) - len(indent) in (0, 4) and '"""' not in nxt[:len(ni) + 3] and not re.match(r"(?:[-*]|\w+:) ", nxt[len(ni):]) else None
            if re.match(r"\w+: ", line[len(indent):]) and more == indent: more = None  # an argument, and the next one
            if more is not None and nxt[len(more):].strip(): lines[n - 1:n + 1] = [head, more + tail + " " + nxt[len(more):]]
            else: lines[n - 1:n] = [head, (indent + "    " if re.match(r"\w+: ", line[len(indent):]) and not indent.strip() else indent) + tail]
            Path(f).write_text("\n".join(lines))
        if len(left) == len(rows): break
    for l in () if quiet else left: print("too long:", l, Path(l.split(":")[0]).read_text().split("\n")[int(l.split(":")[1]) - 1].strip()[:140])
def wrap_pages():
    """Lines of pages that became longer than 160 columns."""
    for f in [f for f in git("ls-files", "*.md").splitlines() if f != "CHANGELOG.md"]:
        lines = Path(f).read_text().split("\n"); i = 0; fenced = False; changed = False
        while i < len(lines):
            line = lines[i]; fenced ^= line.lstrip().startswith("```")
            if len(line) > 160 and not fenced and not line.startswith("|"):
                changed = True; cut = line.rfind(" ", 0, 160); pre = re.match(r"\s*(?:[-*]|\d+\.)?\s*", line)[0]; ind = " " * len(pre)
                head, tail = line[:cut], line[cut + 1:]
                nxt = lines[i + 1] if i + 1 < len(lines) else ""
                if nxt.startswith(ind) and nxt.strip() and not re.match(r"\s*(?:[-*#|<]|\d+\.|```)\s?", nxt): lines[i:i + 2] = [head, ind + tail + " " + nxt[len(ind):]]
                else: lines[i:i + 1] = [head, ind + tail]
            i += 1
        if changed: Path(f).write_text("\n".join(lines))
def inits(only=None):
    import tomllib
    table = tomllib.loads((HERE / "inits.toml").read_text())
    for room, doc in table.items():
        if only and room != only and not room.startswith(only + "/"): continue
        if not os.path.isdir(room): continue
        p = Path(room) / "__init__.py"
        text = p.read_text() if p.exists() else ""
        tail = ""
        if text:
            tree = ast.parse(text)
            if ast.get_docstring(tree) is not None: tail = "".join(text.splitlines(keepends=True)[tree.body[0].end_lineno:])
        p.write_text(f'"""{doc.strip()}\n"""\n{tail}' if "\n" in doc.strip() else f'"""{doc.strip()}"""\n{tail}'); git("add", str(p))
def stage(room, moves, options):
    moves = {a: b for a, b in moves.items() if os.path.exists(a)}
    if not moves: return False
    began = time.monotonic()
    place = {b: a for r in rooms().values() for a, b in r.items()}  # new -> old
    for a, b in moves.items():
        Path(b).parent.mkdir(parents=True, exist_ok=True)
    # a module and a room may share a name: files first to their places (git mv does not mind)
    for a, b in moves.items(): git("mv", a, b)
    for b in {str(Path(b).parent) for b in moves.values()}:
        if b.split("/")[0] in ("agent", "collector", "central", "bench") and not (Path(b) / "__init__.py").exists():
            (Path(b) / "__init__.py").write_text('""""""\n'); git("add", f"{b}/__init__.py")
    symbols, folders = {}, {}
    for end, to in ENDS.items():
        if os.path.isdir(end) and not [f for f in git("ls-files", end).splitlines() if os.path.exists(f) and not f.endswith("__init__.py")]:
            for f in git("ls-files", end).splitlines(): git("rm", "-qf", f)
            folders[end] = to
    if room == "tests" and not git("ls-files", "tests/unit/central/fleet").strip(): folders["tests/unit/central/fleet"] = "tests/unit/central/upgrades"
    old_of = lambda mod: filed(mod) if os.path.exists(filed(mod)) else next((b for r in rooms().values() for a, b in r.items() if dotted(a) == mod), filed(mod))
    todo = []
    for source, rows in S.SPLITS.items():
        for wanted, target, *doc in rows:
            if str(Path(filed(target)).parent) != room: continue
            todo.append((source, wanted, target, doc[0] if doc else ""))
            f = old_of(source); m = dotted(f)
            for w in wanted: symbols[m, w] = target; symbols[source, w] = target
    names = Names(moves, symbols, folders)
    n = rewrite_all(names, moves)
    for source, wanted, target, doc in todo: split(old_of(source), wanted, filed(target), doc)
    if room != "tests": inits(room)
    literal(room)
    tidy()
    if options.commit: wrap(quiet=True)
    print(f"{room}: {len(moves)} moved, {n} files rewritten, {time.monotonic() - began:.1f} s", flush=True)
    if options.commit:
        git("add", "-A"); git("commit", "-qm", F.MESSAGES.get(room) or f"Rooms: {room}")
    return True
def unplaced():
    """Print what has no place; return how much that is."""
    found = []
    placed = {a for r in rooms().values() for a in r} | {b for r in rooms().values() for b in r.values()}
    known = {*tests(), *tests().values()}
    for f in tracked():
        p = f.split("/"); test = re.match(r"tests/unit/(agent|central|collector)/test_(\w+)\.py$", f)
        if test and f not in known and test[2] not in TESTS_STAY[test[1]].split(): found.append(f"tests.txt has no place for {f}")
        if f.startswith("tests/unit/central/fleet/") and f not in known: found.append(f"tests.txt has no place for {f}")
        if not f.endswith(".py") or f.endswith("__init__.py") or f in placed: continue
        if p[0] in STAYS and len(p) == 2 and p[1][:-3] not in STAYS[p[0]].split() or any(f.startswith(e + "/") for e in ENDS):
            found.append(f"rooms.txt has no place for {f}")
    rows = {a: b for r in rooms().values() for a, b in r.items()} | tests()
    found += [f"{a} is neither there nor at {b}: delete its row" for a, b in rows.items() if not os.path.exists(a) and not os.path.exists(b)]
    print(*found, sep="\n", end="\n" if found else "")
    return len(found)
def leave():
    """Delete this folder and its line of pyproject.toml, where it is a part of the checkout."""
    if not HERE.is_relative_to(Path.cwd()): return
    git("rm", "-rqf", "--ignore-unmatch", str(HERE)); shutil.rmtree(HERE, ignore_errors=True)
    project = Path("pyproject.toml"); text = project.read_text()
    project.write_text(text.replace(', "tools/rooms"', ""))
def main():
    p = argparse.ArgumentParser()
    p.add_argument("--check", action="store_true"); p.add_argument("--only", metavar="ROOM"); p.add_argument("--commit", action="store_true")
    o = p.parse_args()
    missing = unplaced()
    if o.check: sys.exit(1 if missing else 0)
    if o.commit and git("status", "--porcelain"): sys.exit("the checkout has changes: commit or stash them first")
    began = time.monotonic()
    stages = {}
    for room, moves in rooms().items():  # benchmarks import each other by their bare names: all at once
        stages.setdefault("bench" if room.startswith("bench/") else room, {}).update(moves)
    for room, moves in stages.items():
        if o.only and room != o.only: continue
        stage(room, moves, o)
    if not o.only or o.only == "tests": stage("tests", tests(), o)
    if not o.only or o.only == "last":
        inits(); literal("last")
        if hasattr(F, "last"): F.last()
        tidy(); wrap(); wrap_pages()
        if o.commit: leave(); git("add", "-A"); subprocess.run(["git", "commit", "-qm", F.MESSAGES["last"]], check=False)
    for line in ALIASED: print("alias kept:", line)
    print(f"all: {time.monotonic() - began:.0f} s")
if __name__ == "__main__": main()
