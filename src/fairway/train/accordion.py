"""Critical regimes of a training run, as Accordion (Agarwal et al., MLSys 2021) finds them.

In some phases, early and after the learning rate decays, errors in gradients do lasting harm. There the norm of the
gradient accumulated over an epoch changes fast. Every `interval` epochs it is compared with the norm at the last
comparison: a relative change of at least `eta` means critical.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fairway.train.gradients import Gradient, add_scaled, layers, squared_norm
from fairway.train.states import State, read_state


class EpochGradient:
    """The gradient accumulated over an epoch, layer by layer, and its norms.

    Steps are weighted by their samples and the sum is divided by all of them. A bare sum of steps is enough while only
    compression changes. But it falls to an eighth by itself when the batch grows eightfold, which would look like a
    critical regime. It takes 8 bytes per parameter, on the device of the gradients.
    """

    def __init__(self) -> None:
        self.samples = 0.0
        self.skipped = 0
        self._sums: list[Any] = []

    def add(self, gradient: Gradient, batch: float) -> bool:
        """Add the gradient of a step, the mean over `batch` samples; one that is not finite is skipped (False)."""
        if not batch > 0:
            raise ValueError(f"the batch size must be positive, not {batch}")
        parts = list(layers(gradient))
        if not math.isfinite(squared_norm(parts)):
            self.skipped += 1
            return False
        sums = self._sums or [None] * len(parts)
        self._sums = [add_scaled(total, part, batch) for total, part in zip(sums, parts, strict=True)]
        self.samples += batch
        return True

    def norms(self) -> list[float]:
        """The norm of every layer; empty if nothing was added."""
        return [math.sqrt(squared_norm(total)) / self.samples for total in self._sums]

    def norm(self) -> float:
        """The sum of the layers' norms; NaN if nothing was added, which detectors treat as unknown."""
        return math.fsum(self.norms()) if self._sums else math.nan

    def clear(self) -> None:
        """Begin the next epoch."""
        self.samples, self._sums = 0.0, []


class CriticalRegime:
    """Whether training is in a critical regime, judged by one norm: of one layer, or the sum over layers.

    Everything is critical up to the first comparison, and so is what follows a norm of zero. A norm that is not finite
    says nothing: the answer stays as it is, and the next comparison is with the last norm that was finite.
    """

    kind = "critical_regime"

    def __init__(self, interval: int = 10, eta: float = 0.5) -> None:
        if interval < 1 or not eta > 0:
            raise ValueError(f"interval must be at least 1 and eta positive, not {interval} and {eta}")
        self.interval = interval
        self.eta = eta
        self.epochs = 0
        self.critical = True
        self._old: float | None = None

    def end_epoch(self, norm: float) -> bool:
        """Take the norm of the gradient accumulated over the epoch that ended; True if the next epoch is critical.

        Epochs 0, `interval`, twice that and so on are compared; between them the norm does not matter.
        """
        if norm < 0:
            raise ValueError(f"a norm is not negative: {norm}")
        compared = self.epochs % self.interval == 0
        self.epochs += 1
        if compared and math.isfinite(norm):
            self.critical = not self._old or abs(self._old - norm) / self._old >= self.eta
            self._old = norm
        return self.critical

    def state(self) -> State:
        """What a resumed job needs, as JSON values."""
        return {"kind": self.kind, "epochs": self.epochs, "critical": self.critical, "old": self._old}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` gave."""
        epochs, critical, old = read_state(state, self.kind, "epochs", "critical", "old")
        self.epochs, self.critical, self._old = int(epochs), bool(critical), None if old is None else float(old)


class LayerRegimes:
    """Critical regimes layer by layer, for what can be chosen per layer, such as the rank of a compressed gradient."""

    kind = "layer_regimes"

    def __init__(self, layers: int, interval: int = 10, eta: float = 0.5) -> None:
        self.regimes = [CriticalRegime(interval, eta) for _ in range(layers)]

    @property
    def critical(self) -> list[bool]:
        """Which layers are in a critical regime."""
        return [regime.critical for regime in self.regimes]

    def end_epoch(self, norms: Sequence[float]) -> list[bool]:
        """Take the norm of every layer; which of them are critical in the next epoch."""
        return [regime.end_epoch(norm) for regime, norm in zip(self.regimes, norms, strict=True)]

    def state(self) -> State:
        """What a resumed job needs, as JSON values."""
        return {"kind": self.kind, "layers": [regime.state() for regime in self.regimes]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` gave."""
        (states,) = read_state(state, self.kind, "layers")
        for regime, of_layer in zip(self.regimes, states, strict=True):
            regime.restore(of_layer)
