"""What `torchrun`, `accelerate launch` and `deepspeed` do in a job: start the ranks of this node, and wait for them.

    python launcher.py --nproc-per-node 2 SCRIPT …

SIGTERM goes on to the ranks. If one of them fails, the others are stopped.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import time

options = argparse.ArgumentParser()
options.add_argument("--nproc-per-node", type=int, required=True)
options.add_argument("command", nargs=argparse.REMAINDER)
asked = options.parse_args()
with socket.create_server(("127.0.0.1", 0)) as probe:
    port = probe.getsockname()[1]
world = asked.nproc_per_node
group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world)}
group |= {"GROUP_RANK": "0", "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "0"}
if world > 1 and "OMP_NUM_THREADS" not in os.environ:
    print("Setting OMP_NUM_THREADS environment variable for each process to be 1 in default", file=sys.stderr)
    group["OMP_NUM_THREADS"] = "1"
ranks = [
    subprocess.Popen(
        [sys.executable, "-u", *asked.command], env={**os.environ, **group, "RANK": str(rank), "LOCAL_RANK": str(rank)}
    )
    for rank in range(world)
]
signal.signal(signal.SIGTERM, lambda *_: [rank.terminate() for rank in ranks] and None)
while None in (codes := [rank.poll() for rank in ranks]):
    if any(codes):
        for rank in ranks:
            rank.terminate()
    time.sleep(0.1)
sys.exit(max(abs(code or 0) for code in codes))
