"""The page about the training library: what it shows runs as it stands there."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from session_cases import environment

from fairway import train
from fairway.train import Session

PAGE = Path(__file__).resolve().parents[3] / "docs" / "train.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def block(word: str) -> str:
    """The only block with a word in it."""
    found = [one for one in BLOCKS if word in one]
    assert len(found) == 1, f"{len(found)} blocks have {word!r} in them"
    return found[0]


class Training:
    """What a reader has: a state, and functions that save, load and train it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, stop: int | None, restart: int = 0) -> None:
        self.trained: list[Any] = []
        self.stop = stop
        for name, value in environment(folder, restart=restart, resume=restart > 0).items():
            monkeypatch.setenv(name, value)

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(self.trained))

    def load(self, path: Path) -> int:
        self.trained = json.loads(path.read_text())
        return len(self.trained)

    def train_on(self, *batch: Any) -> float:
        self.trained.append(list(batch))
        return 1.0 / len(self.trained)

    def run(self, code: str, **names: Any) -> Session:
        """Run a block; the session sees a request to stop when so many steps were trained."""
        at_stop = property(lambda flag: self.stop is not None and len(self.trained) >= self.stop, lambda flag, to: None)
        space: dict[str, Any] = {"train": train, "save": self.save, "load": self.load, "train_on": self.train_on}
        space |= {"batch": lambda step: step, **names}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("fairway.train.stopping.StopFlag.is_set", at_stop, raising=False)
            exec(compile(code, str(PAGE), "exec"), space)
        made: Session = space["session"]
        return made


@pytest.mark.parametrize("code", BLOCKS)
def test_every_block_is_python(code: str) -> None:
    compile(code, str(PAGE), "exec")


def test_the_first_loop_runs_and_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = block("train_on(batch(step))")
    with pytest.raises(SystemExit, match="75"):
        Training(tmp_path, monkeypatch, stop=30).run(code)
    training = Training(tmp_path, monkeypatch, stop=None, restart=1)
    training.run(code).close()
    assert training.trained == [[step] for step in range(1000)]
    assert len([line for line in code.splitlines() if "session" in line]) == 3


def test_a_loop_of_your_own_runs_and_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "session = train.session(1000)\n" + block("exit_for_requeue").replace("...", "loss = train_on(step)")
    with pytest.raises(SystemExit, match="75"):
        Training(tmp_path, monkeypatch, stop=30).run(code)
    training = Training(tmp_path, monkeypatch, stop=None, restart=1)
    training.run(code).close()
    assert training.trained == [[step] for step in range(1000)]


def test_a_data_loader_goes_on_with_the_batches_that_were_not_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One that loads ahead, as torch's does.
    def loader(data: list[int], *, batch_sampler: Any, num_workers: int, worker_init_fn: Any) -> Any:
        ahead = [next(batch_sampler) for _ in range(num_workers)]
        while True:
            ahead.append(next(batch_sampler))
            rows = ahead.pop(0)
            yield [data[row] for row in rows], sum(rows)

    code, names = block("DataLoader("), {"data": list(range(640)), "DataLoader": loader}
    with pytest.raises(SystemExit, match="75"):
        Training(tmp_path, monkeypatch, stop=25).run(code, **names)
    training = Training(tmp_path, monkeypatch, stop=None, restart=1)
    made = training.run(code, **names)
    made.close()
    rows = made.sampler(640).rows_from(0, 64)
    assert [inputs for inputs, _ in training.trained] == [next(rows) for _ in range(1000)]
