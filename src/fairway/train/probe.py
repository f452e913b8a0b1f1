"""The gradient noise of a model of torch, measured by what its training offers: replicas, shards, or steps."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Any

from fairway.train.gradients import Gradient, squared_norm, wide
from fairway.train.noise_scale import ConsecutiveNoiseEstimator, mean_over_processes
from fairway.train.ranks import distributed


class NoiseProbe(ConsecutiveNoiseEstimator):
    """Measures the noise scale of a model.

    A step consists of `parts` backward passes on each process (`len(sampler.mine)`), each of a loss that was divided by
    `parts`. If there are several passes, or several processes, the gradients of all passes are compared with their
    mean; a hook on each parameter sees them before they are added up. So a job that goes on with another number of
    processes measures the same, if its shards are the same. With one pass in all, consecutive steps are compared.
    """

    kind = "noise_probe"

    def __init__(self, model: Any, *, parts: int = 1, decay: float = 0.9) -> None:
        super().__init__(decay)
        self._model: Any = model
        self._hooked = False
        self._seen: set[int] = set()
        self.set_parts(parts)

    def set_parts(self, parts: int) -> None:
        """From the next step on a step consists of another number of backward passes."""
        if parts < 1:
            raise ValueError(f"a step has at least one backward pass, not {parts}")
        self.parts = parts
        module = distributed()
        self._compares = parts > 1 or (module is not None and int(module.get_world_size()) > 1)
        self._passes: deque[Any] = deque(maxlen=parts)
        self._seen.clear()
        if self._compares and not self._hooked:
            self._hooked = True
            for place, parameter in enumerate(self._model.parameters()):
                if parameter.requires_grad:
                    parameter.register_hook(lambda gradient, place=place: self._take(place, gradient))

    def observe(self, gradient: Gradient, batch: float) -> bool:
        """After the last backward pass of a step: take `gradients_of(model.parameters())`, before they are changed.

        `batch` counts the samples of this process. Every process must call this in the same steps, which need not be
        all; False if nothing could be learned.
        """
        if not self._compares:
            return super().observe(gradient, batch)
        sums = [float(one) for one in self._passes]
        self._passes.clear()
        self._seen.clear()
        # The gradient of a loss divided by n has a squared norm that is too small by n².
        small = math.fsum(sums) * self.parts if len(sums) == self.parts else math.nan
        (small, large), processes = mean_over_processes((small, squared_norm(gradient)), None)
        return self.observe_norms(small, large, batch / self.parts, batch * processes)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` gave, on any number of processes: the averages are those of single samples."""
        super().restore(state)
        self._passes.clear()

    def _take(self, place: int, gradient: Any) -> None:
        """Add the gradient of one parameter to the squared norm of this pass; it stays on its device."""
        if not self._compares:
            return
        row = wide(gradient)
        if not self._passes or place in self._seen:
            # A parameter that comes again belongs to the next pass.
            self._passes.append(0.0)
            self._seen.clear()
        self._seen.add(place)
        total = self._passes[-1]
        there = row.dot(row)
        self._passes[-1] = there if isinstance(total, float) else total + there.to(total.device)
