"""pytorch/examples, word_language_model: a table of bars, and Ctrl-C that ends the training early."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from pretended import paced

BATCHES = 1000
options = argparse.ArgumentParser(description="PyTorch Wikitext-2 RNN/LSTM/GRU/Transformer Language Model")
options.add_argument("--epochs", type=int, default=40)
options.add_argument("--log-interval", type=int, default=200)
options.add_argument("--save", default="model.pt")
asked = options.parse_args()
loss = 6.0
try:
    for epoch in range(1, asked.epochs + 1):
        for batch in paced(range(asked.log_interval, BATCHES, asked.log_interval)):
            loss *= 0.99
            print(
                f"| epoch {epoch:3d} | {batch:5d}/{BATCHES:5d} batches | lr {20:02.2f} | ms/batch {12.5:5.2f} | "
                f"loss {loss:5.2f} | ppl {math.exp(loss):8.2f}"
            )
        print("-" * 89)
        print(f"| end of epoch {epoch:3d} | time: {1.25:5.2f}s | valid loss {loss + 0.1:5.2f} | valid ppl {300:8.2f}")
        print("-" * 89)
        Path(asked.save).write_text(str(epoch))
except KeyboardInterrupt:
    print("Exiting from training early")
print(f"| End of training | test loss {loss:5.2f} | test ppl {math.exp(loss):8.2f}")
