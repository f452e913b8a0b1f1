"""pytorch/examples, imagenet: ranks by options or by WORLD_SIZE, a checkpoint after each epoch, `--resume`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from pretended import paced, save

BATCHES = 100
options = argparse.ArgumentParser(description="PyTorch ImageNet Training")
options.add_argument("data", nargs="?", default="imagenet")
options.add_argument("--epochs", type=int, default=90)
options.add_argument("--start-epoch", type=int, default=0)
options.add_argument("-p", "--print-freq", type=int, default=10)
options.add_argument("--resume", default="")
options.add_argument("--world-size", type=int, default=-1)
options.add_argument("--dist-url", default="tcp://224.66.41.62:23456")
options.add_argument("--dummy", action="store_true")
asked = options.parse_args()
if asked.dist_url == "env://" and asked.world_size == -1:
    asked.world_size = int(os.environ["WORLD_SIZE"])
print(f"distributed: {asked.world_size > 1}")
print("=> creating model 'resnet18'")
if asked.resume:
    saved = Path(asked.resume)
    if saved.is_file():
        asked.start_epoch = int(saved.read_text())
        print(f"=> loaded checkpoint '{saved}' (epoch {asked.start_epoch})")
    else:
        print(f"=> no checkpoint found at '{saved}'")
if asked.dummy:
    print("=> Dummy data is used!")
for epoch in range(asked.start_epoch, asked.epochs):
    for batch in paced(range(1, BATCHES + 1, asked.print_freq)):
        loss = 6.9 - epoch - batch / BATCHES
        print(
            f"Epoch: [{epoch}][{batch:3d}/{BATCHES}]\tTime  0.250 ( 0.260)\tData  0.001 ( 0.002)\t"
            f"Loss {loss:.4e} ({loss:.4e})\tAcc@1   0.39 (  0.35)\tAcc@5   1.56 (  1.40)"
        )
    print(f"Test: [ 1/10]\tTime  0.100 ( 0.100)\tLoss {6.0:.4e} ({6.0:.4e})")
    print(" *   Acc@1 10.000 Acc@5 30.000")
    save(Path("checkpoint.pth.tar"), str(epoch + 1))
