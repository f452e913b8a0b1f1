"""nanoGPT's train.py: defaults, a file of settings that it prints, then options; DDP if it finds RANK."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pretended import paced

settings: dict[str, str] = {"max_iters": "600000", "log_interval": "10", "eval_interval": "500", "out_dir": "out"}
for word in sys.argv[1:]:
    if "=" not in word:
        text = Path(word).read_text()
        print(f"Overriding config with {word}:")
        print(text)
        settings |= {name.strip(): value.strip() for name, value in (row.split("=") for row in text.splitlines())}
    else:
        name, value = word.removeprefix("--").split("=")
        print(f"Overriding: {name} = {value}")
        settings[name] = value

ddp = int(os.environ.get("RANK", -1)) != -1
if ddp and not os.environ.get("CUDA_VISIBLE_DEVICES"):
    # It asks for NCCL, which finds no GPU here.
    sys.exit("ProcessGroupNCCL is only supported with GPUs, no GPUs found!")
print(f"tokens per iteration will be: {12 * 1024:,}")
out = Path(settings["out_dir"])
out.mkdir(exist_ok=True)
print("Initializing a new model from scratch")
print("number of parameters: 0.80M")

last, each = int(settings["max_iters"]), int(settings["log_interval"])
for step in paced(range(0, last + 1, each)):
    loss = 4.2 - 2 * step / last
    if step % int(settings["eval_interval"]) == 0:
        print(f"step {step}: train loss {loss:.4f}, val loss {loss + 0.1:.4f}")
        if step:
            print(f"saving checkpoint to {out}")
            (out / "ckpt.pt").write_text(str(step))
    print(f"iter {step}: loss {loss:.4f}, time 25.10ms, mfu -100.00%")
