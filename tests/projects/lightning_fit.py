"""Lightning's Trainer: it looks for Slurm, then for a launcher, then starts the other ranks itself.

    python lightning_fit.py --trainer.max_epochs=3 --trainer.devices=2

On a terminal it draws with rich, which draws nothing else where. `--tqdm` is TQDMProgressBar.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys

from pretended import meet, paced, tqdm

BATCHES = 50
options = argparse.ArgumentParser()
options.add_argument("--trainer.max_epochs", type=int, default=3, dest="max_epochs")
options.add_argument("--trainer.devices", type=int, default=1, dest="devices")
options.add_argument("--tqdm", action="store_true")
asked = options.parse_args()
rank, kind, child = 0, "SingleDevice", None
if asked.devices > 1:
    if "SLURM_NTASKS" in os.environ and os.environ.get("SLURM_JOB_NAME") not in ("bash", "interactive"):
        kind, rank = "SLURMEnvironment", int(os.environ["SLURM_PROCID"])
        if int(os.environ["SLURM_NTASKS"]) != asked.devices:
            sys.exit(
                f"You set `devices={asked.devices}` in Lightning, but SLURM has {os.environ['SLURM_NTASKS']} tasks"
            )
    else:
        kind, rank = "LightningEnvironment", int(os.environ.get("LOCAL_RANK", 0))
        if "LOCAL_RANK" not in os.environ:
            with socket.create_server(("127.0.0.1", 0)) as probe:
                os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1])}
            child = subprocess.Popen(
                [sys.executable, *sys.argv], env={**os.environ, "LOCAL_RANK": "1", "NODE_RANK": "0"}
            )
    print(f"Initializing distributed: GLOBAL_RANK: {rank}, MEMBER: {rank + 1}/{asked.devices}")
    meet(rank, asked.devices, os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
drawn = not asked.tqdm and sys.stdout.isatty()
for epoch in range(asked.max_epochs):
    for batch in paced(range(1, BATCHES + 1)):
        loss = f"{0.7 - batch / 1e3:.3f}"
        if rank == 0 and asked.tqdm:
            tqdm(batch, BATCHES, f"Epoch {epoch}: ", f"v_num=0, train_loss={loss}")
        elif rank == 0 and drawn:
            bar = "━" * (20 * batch // BATCHES) + "\x1b[90m" + "━" * (20 - 20 * batch // BATCHES)
            sys.stdout.write(
                f"\r\x1b[2KEpoch {epoch}/{asked.max_epochs - 1}  \x1b[35m{bar}\x1b[0m {batch}/{BATCHES} "
                f"\x1b[2m0:00:07 • 0:00:02\x1b[0m \x1b[2;4m4.00it/s\x1b[0m \x1b[3mtrain_loss: {loss}\x1b[0m"
            )
            sys.stdout.flush()
print(f"\n`Trainer.fit` stopped: `max_epochs={asked.max_epochs}` reached.", file=sys.stderr)
print(f"world {asked.devices} rank {rank} of {kind}")
sys.exit(child.wait() if child else 0)
