"""PyTorch's tutorial of DDP under torchrun: no rank, no start; it goes on from its snapshot."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from pretended import meet_by_environment, paced, save

options = argparse.ArgumentParser(description="simple distributed training job")
options.add_argument("total_epochs", type=int)
options.add_argument("save_every", type=int)
asked = options.parse_args()
rank, world = meet_by_environment()
gpu = int(os.environ["LOCAL_RANK"])
snapshot, done = Path("snapshot.pt"), 0
if snapshot.exists():
    print("Loading snapshot")
    done = int(snapshot.read_text())
    print(f"Resuming training from snapshot at Epoch {done}")
for epoch in paced(range(done, asked.total_epochs)):
    print(f"[GPU{gpu}] Epoch {epoch} | Batchsize: 32 | Steps: 64")
    if gpu == 0 and epoch % asked.save_every == 0:
        save(snapshot, str(epoch))
        print(f"Epoch {epoch} | Training snapshot saved at snapshot.pt")
print(f"rank {rank} of {world}")
