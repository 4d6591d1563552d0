"""Before the move: cycles between rooms and between modules as they will be, the levels of rooms, how many modules each has.

    .venv/bin/python tools/rooms/cycles.py

Cycles through `advice` and `publish`, and between `engine` and `dictionary_encoding`, are ended by fixes.py.
"""
import ast, collections, functools, os, sys
from pathlib import Path
HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import move
from splits import SPLITS
def load():
    return {move.dotted(a): move.dotted(b) for r in move.rooms().values() for a, b in r.items()}
if __name__=='__main__':
    M=load(); assert len(set(M.values()))==len(M)
    files=os.popen('git ls-files agent collector central').read().split()
    mods={f[:-3].replace('/','.').removesuffix('.__init__') for f in files if f.endswith('.py')}
    missing=[o for o in M if o not in mods and not o.startswith('bench')]
    print('missing',missing)
    sym={}
    for o,l in SPLITS.items():
        for names,n,*_ in l:
            for x in names: sym[o,x]=n
    def room(m):
        p=m.split('.')
        if len(p)<=2:
            return m if m in final else m
        return '.'.join(p[:2])
    final={M.get(m,m) for m in mods}|{n for l in SPLITS.values() for _,n,*_ in l}
    edges=collections.defaultdict(lambda: collections.defaultdict(set)); meds=collections.defaultdict(set)
    for f in files:
        if not f.endswith('.py'): continue
        me=f[:-3].replace('/','.').removesuffix('.__init__'); src=M.get(me,me)
        tree=ast.parse(open(f).read())
        defs={}  # split-aware: lines of split names
        for n in tree.body:
            nm=getattr(n,'name',None) or (n.targets[0].id if isinstance(n,ast.Assign) and isinstance(n.targets[0],ast.Name) else n.target.id if isinstance(n,ast.AnnAssign) else None)
            if nm and (me,nm) in sym: defs[nm]=n
        used={}
        for nm,n in defs.items():
            used[nm]={x.id for x in ast.walk(n) if isinstance(x,ast.Name)}
        rest={x.id for n in tree.body if n not in defs.values() and not isinstance(n,(ast.Import,ast.ImportFrom)) for x in ast.walk(n) if isinstance(x,ast.Name)}
        for a in defs: 
            if a in rest: meds[src].add(sym[me,a])
        for n in ast.walk(tree):
            if isinstance(n,ast.ImportFrom) and n.module:
                for a in n.names:
                    t=(n.module+'.'+a.name) if n.module+'.'+a.name in mods else n.module
                    if t not in mods: continue
                    dst=sym.get((t,a.name)) or M.get(t,t)
                    who=[sym[me,d] for d in defs if (a.asname or a.name) in used[d]]
                    for w in set(who): meds[w].add(dst)
                    if (a.asname or a.name) in rest or not who: meds[src].add(dst)
            elif isinstance(n,ast.Import):
                for a in n.names:
                    if a.name in mods: meds[src].add(M.get(a.name,a.name))
    for s,ds in meds.items():
        for d in ds:
            if room(s)!=room(d) and s.split('.')[0]==d.split('.')[0]: edges[room(s)][room(d)].add((s,d))
    # scc
    def sccs(g):
        idx={};low={};st=[];on=set();out=[];c=[0]
        sys.setrecursionlimit(10000)
        def v(x):
            idx[x]=low[x]=c[0];c[0]+=1;st.append(x);on.add(x)
            for y in g.get(x,()):
                if y not in idx: v(y);low[x]=min(low[x],low[y])
                elif y in on: low[x]=min(low[x],idx[y])
            if low[x]==idx[x]:
                k=[]
                while True:
                    y=st.pop();on.discard(y);k.append(y)
                    if y==x:break
                out.append(k)
        for x in list(g): 
            if x not in idx: v(x)
        return out
    order=sccs(edges)
    for k in order:
        if len(k)>1:
            print('ROOM CYCLE',k)
            for s in k:
                for d in edges[s]:
                    if d in k: print('   ',s,'->',d,sorted(edges[s][d])[:8])
    for k in sccs(meds):
        if len(k)>1: print('module cycle',k)
    # levels
    lev={}
    CUT={('central.coefficients','central.build'),('agent.antagonists','agent.api')}
    @functools.cache
    def level(r): return 1+max((level(d) for d in edges.get(r,()) if d!=r and (r,d) not in CUT),default=-1)
    if True:
        for p in('agent','collector','central'):
            d=collections.defaultdict(list)
            rooms={room(m) for m in final if m.startswith(p+'.')}
            for r in rooms: d[level(r)].append(r.split('.',1)[1])
            for l in sorted(d,reverse=True): print(p,l,' | '.join(sorted(d[l])))
    cnt=collections.Counter('.'.join(m.split('.')[:-1]) for m in final if m not in{'.'.join(x.split('.')[:-1]) for x in final})
    print({k:v for k,v in sorted(cnt.items())})
