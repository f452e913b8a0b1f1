"""scikit-learn's GridSearchCV with `verbose=10, n_jobs=2`: its workers print to the stdout that they inherit."""

from __future__ import annotations

import os
import subprocess
import sys

from pretended import paced

FOLDS, CANDIDATES, JOBS = 5, 160, 2
if len(sys.argv) == 1:
    print(f"Fitting {FOLDS} folds for each of {CANDIDATES} candidates, totalling {FOLDS * CANDIDATES} fits")
    workers = [subprocess.Popen([sys.executable, sys.argv[0], str(worker)]) for worker in range(JOBS)]
    codes = [worker.wait() for worker in workers]
    print(f"threads {os.environ.get('OMP_NUM_THREADS', 'unset')}")
    sys.exit(max(codes))
for fit in paced(range(int(sys.argv[1]), FOLDS * CANDIDATES, JOBS)):
    name = f"[CV {fit % FOLDS + 1}/{FOLDS}; {fit // FOLDS + 1}/{CANDIDATES}]"
    print(f"{name} START a={fit // FOLDS}".ljust(80, "."))
    print(f"{name} END ...................a={fit // FOLDS};, score=0.525 total time=   0.4s")
