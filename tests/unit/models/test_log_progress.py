"""Progress that is read off logs: right for the logs of many frameworks, and none where there is none."""

from __future__ import annotations

import math
import re
import runpy
import sys
import time
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from training_logs import BEFORE, FORMS, Training, bar, clock, written

from fairway.models.count_pace import CountPace
from fairway.models.log_forms import hints, mentions
from fairway.models.log_progress import LogProgress, LogReader
from fairway.testing.seeds import ALL

MOST_POLLS = 300


def read_whole(reader: LogReader, run: Training, form: str, rng: Random) -> list[tuple[float, float, LogProgress]]:
    """Read the log of a run now and then, in pieces, by the time of the last write.

    Returns what was done, what is left in seconds, and what was read.
    """
    _, parts = written(form, run)
    end_s, now_s, at, seen = parts[-1].time_s, 0.0, 0, []
    done = wrote_s = 0.0
    poll_s = max(end_s / MOST_POLLS, 4.0)
    while at < len(parts):
        now_s += rng.uniform(0.5, 1.5) * poll_s
        piece = b""
        while at < len(parts) and parts[at].time_s <= now_s:
            piece, done = piece + parts[at].text.encode(), parts[at].done
            wrote_s, at = parts[at].time_s if parts[at].text else wrote_s, at + 1
        cut = rng.randrange(len(piece) + 1)
        reader.read(piece[:cut], wrote_s)
        found = reader.read(piece[cut:], wrote_s)
        # A count of all epochs together is known as such when the second epoch begins.
        if (0.13 if form == "steps, of all epochs" else 0.1) <= done < 1:
            assert found is not None, (form, run, done)
            seen.append((done, end_s - wrote_s, found))
    return seen


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("seed", range(1, 21) if ALL else (1, 2, 5))
def test_what_is_left_is_right_within_a_tenth(form: str, seed: int) -> None:
    run = Training(seed)
    reader = LogReader(written(form, run)[0])
    seen = read_whole(reader, run, form, Random(seed))
    # What cannot be known from a log: the evaluation that comes last, and what has happened since the latest line.
    unseen_s = run.eval_s + 20 * run.step_s
    for done, left_s, found in seen:
        assert abs(found.left_s - left_s) <= 0.1 * left_s + unseen_s, (done, left_s, found)
        expected = done * (run.total - run.first) + run.first
        assert found.done / found.total == pytest.approx(
            expected / run.total, abs=0.04 if form == "Detectron2" else 0.01 + 25 / run.total
        )
    assert {found.form for *_, found in seen} <= {form.split(",")[0], "Keras", "Hugging Face Trainer", "steps"}
    if form not in ("tqdm, nested", "tqdm, fastai", "YOLO", "rich", "percent", "steps, Stable-Baselines3", "DCGAN"):
        assert 0.3 < seen[-1][2].loss < 1.5


def test_a_change_of_speed_is_seen() -> None:
    reader, now_s, done = LogReader(), 0.0, 0
    while done < 900:
        now_s, done = now_s + (1.0 if done < 400 else 3.0), done + 1
        found = reader.read(bar(done, 1000).encode(), now_s)
    assert found is not None
    assert found.left_s == pytest.approx(300.0, rel=0.1)


def test_another_place_is_another_pace() -> None:
    reader = LogReader()
    for done in range(1, 400):
        reader.read(bar(done, 1000).encode(), float(done))
    reader.changed(400.0)
    found = [reader.read(bar(done, 1000).encode(), 400.0 + 5.0 * (done - 400)) for done in range(400, 420)]
    assert found[0] is not None
    assert math.isnan(found[0].per_s)
    assert found[-1] is not None
    assert found[-1].per_s == pytest.approx(0.2)


def test_ranks_that_write_into_one_log_do_not_matter() -> None:
    rng, reader, found = Random(3), LogReader("train --epochs 10"), None
    for step in range(500):
        text = ""
        for rank in rng.sample(range(8), 8):
            behind = max(step - rng.randrange(3), 0)
            text += f"[rank{rank}] Epoch {behind // 50 + 1}/10 step {behind % 50 + 1}/50 loss 0.5\n"
        found = reader.read(text.encode(), float(step))
        if step > 50:
            assert found is not None
            assert found.left_s == pytest.approx(500 - step, rel=0.1, abs=20)


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_any_pieces_give_the_same(size: int) -> None:
    text = "".join(bar(done, 50, "Épochs ✓") + "\x1b[A" for done in range(1, 21)).encode() + b"\xff\xfe\n"
    whole, cut = LogReader(), LogReader()
    for begin in range(0, len(text), 500):
        piece, now_s = text[begin : begin + 500], begin / 10
        expected = whole.read(piece, now_s)
        found = [cut.read(piece[at : at + size], now_s) for at in range(0, len(piece), size)][-1]
        assert found == expected
    assert expected is not None


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.binary(max_size=300), st.booleans()), max_size=30), st.integers(0, 2**32))
def test_any_bytes_can_be_read(pieces: list[tuple[bytes, bool]], seed: int) -> None:
    rng, reader = Random(seed), LogReader()
    sample = "".join(part.text for part in written(rng.choice([*FORMS]), Training(1))[1][:50]).encode()
    for now_s, (piece, gap) in enumerate(pieces):
        at = rng.randrange(len(sample))
        found = reader.read(piece + sample[at : at + rng.randrange(200)], float(now_s), gap=gap)
        assert found is None or (0 <= found.done <= found.total < math.inf and not found.per_s <= 0)


_ORDINARY = (
    "loaded shards GPU 1/8 3/4 11/18 found files 12/100 version 2.13/1 took 45% of memory ratio = 0.5/0.7 and "
    "{'acc': 0.91} [INFO] http://a/1/2 2026/11/18 test images 97 rank 0/4 worker 3/16 tokens/s layer 12 score"
)
WORDS = st.sampled_from(_ORDINARY.split())


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(WORDS, max_size=12).map(" ".join), max_size=60))
def test_ordinary_words_and_numbers_are_no_progress(lines: list[str]) -> None:
    reader = LogReader()
    for now_s, line in enumerate(lines):
        assert reader.read(f"{line}\n".encode(), 10.0 * now_s) is None


NO_PROGRESS = [
    "11/{n} 12:00:00 started",
    "loaded {n}/{t} shards",
    "GPU {n}/{t} is ready",
    "found {n}/{t} files",
    "[{n}/{t}] Building CXX object src/CMakeFiles/a.dir/b.cpp.o",
    "tests/unit/test_a.py ..........                                   [ {n}%]",
    "Step {n}/12 : RUN pip install torch",
    "Test set: Average loss: 0.0512, Accuracy: {n}/{t} ({n}%)",
    "val_accuracy {n}/{t} = 0.8",
    '{{"done": {n}, "of": {t}, "ratio": "{n}/{t}"}}',
    "Requirement already satisfied: numpy=={n}.{t} in /usr/lib/python3/{n}/{t}",
    "   ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━ {n}.0/{t}.5 MB 12.3 MB/s eta 0:00:{n}",
    "Get:{n} http://deb.example.org/debian stable/main amd64 libc{n}/{t} [12 kB]",
    "recv {n}/{t} buckets, nccl channel {n}/0 : 0[0] -> 1[1] via P2P/CUMEM",
    "Test: [{n}/{t}]\tTime 0.9 (0.9)\tLoss 5.1 (5.1)\tAcc@1 3.1 (3.1)",
    "Inference done {n}/{t}. 0.05 s / img. ETA=0:00:10",
    "Validation: step {n}/{t} loss 0.4",
    "best epoch so far: {n}, patience {n}/{t}",
    "best epoch {n}: loss 0.5",
    "[CV {n}/{t}] END ...................a=1;, score=0.525 total time=   0.4s",
    "[GPU0] Epoch {n} | Batchsize: 32 | Steps: 64",
    "memory used: {n}/{t} GiB, epochs trained before: {n}",
    "2026-11-18 | INFO | fold {n}/{t} ready",
    "downloaded {n} of {t} files",
    "episode reward mean {n}/{t}",
    "{n}it [00:{n}, 11.0it/s]",
    "train: {n}it [00:{n}, 11.0it/s, loss=0.5]",
    "[{n}]\ttrain-rmse:0.5\teval-rmse:0.61",
    "[{n}]\tvalid_0's binary_logloss: 0.61",
    "train step: {n}, loss: 0.52",
    "step {n} loss 0.52 lr 1e-4",
    "|    total_timesteps      | {n}000        |",
    "|    n_updates            | {n}           |",
    "  0     {n}00   35.20   123.40   71.05   70.90   71.20    0.71",
    "{n}         0.521     0.311      0.912     00:12",
    "Receiving objects:  {n}% ({n}/{t}), 12.10 MiB | 3.20 MiB/s",
    "Resolving deltas: {n}% ({n}/{t})",
    "remote: Compressing objects:  {n}% ({n}/{t})",
    "Updating files: {n}% ({n}/{t})",
    "Filtering content: {n}% ({n}/{t}), 1.20 GiB | 30.10 MiB/s",
    "Progress: [ {n}%] [####..........................]",
    "(Reading database ... {n}%",
    "{n}% [{n} libfoo-dev 12.3 kB/45.6 kB {n}%]",
    "Unpacking libfoo{n} (1.{n}-{t}) over (1.0/{t}) ...",
    "  % Total    % Received % Xferd  {n} {t}M  {n} 12.0M    0     0  3210k      0  0:00:32  0:00:{n}",
    "model.bin   {n}%[=======>            ]  {n}0.51M  11.2MB/s    eta {n}s",
    "     |████████████████▏               | {n} kB 12.3 MB/s eta 0:00:{n}",
    "Downloading shards: {n}%|██        | {n}/{t} [00:10<00:20,  1.2it/s]",
    "Map (num_proc=4): {n}%|██        | {n}/{t} [00:10<00:20, 800.00 examples/s]",
    "Filter: {n}%|██        | {n}/{t} [00:10<00:20, 800.00 examples/s]",
    "Running tokenizer on dataset: {n}%|██        | {n}/{t} [00:10<00:20, 800.00 examples/s]",
    "Generating validation split: {n}%|██        | {n}/{t} [00:10<00:20, 800.00 examples/s]",
    "train-00000-of-00004.parquet: {n}%|██        | {n}.0M/{t}M [00:10<00:20, 12.5MB/s]",
    "Uploading: {n}% complete, 12.5 MB/s",
    "download {n}% complete",
    "{n}% done, 12.5 MB/s",
    "Copying files: {n}% done",
    "Loading weights {n}/{t} loss scale 1.0",
    "Loading pipeline components...: {n}%|██    | {n}/{t} [00:01<00:02,  3.1it/s]",
    "(EngineCore pid=1) Capturing CUDA graphs: {n}%|██    | {n}/{t} [00:01<00:02,  3.1it/s]",
    "node1:{n}:{t} [0] NCCL INFO Channel {n}/{t} : 0 1 2 3",
    "node1:{n}:{t} [0] NCCL INFO comm 0x5 rank 0 nranks 4 cudaDev 0 busId {n} - Init COMPLETE {n}/{t}",
    "NCCL INFO Trees [0] 1/-1/-1->0->-1 [1] {n}/-1/-1->0->-1",
    "accumulation step {n}/{t} loss 0.5",
    "micro-batch {n}/{t}: loss 0.51",
    "micro step {n}/{t} loss 0.5",
    "judge gave {n}/{t}",
    "score: {n}/{t}",
    "wins {n}/{t}, draws 3/5",
    "Accuracy: {n}/{t}",
    "correct {n}/{t} ({n}%)",
    "passed {n}/{t} tests",
    "test_training.py::test_step[{n}/{t}] PASSED [ {n}%]",
    "FAILED tests/test_{n}.py::test_epoch - assert {n}/{t} == 0.5",
    "Ran {n} of {t} tests, {n}% done",
    "| N/A   {n}C    P0    65W / 300W |   {n}MiB / 40960MiB |     {n}%      Default |",
    "| {n}%   45C    P2    65W / 300W |   1024MiB / 24576MiB |     {n}%      Default |",
    '  File "/srv/train.py", line {n}, in step {n}/{t}',
    "wandb:   train/global_step {n}",
    "wandb:         train/epoch {n}",
    "wandb: Run history: epoch ▁▂▃▄ {n}/{t}",
    "step: {n}",
    "epoch: {n}",
    "  save_every: {n}  # steps {n}",
    '  "step": {n},',
    '{{"epoch": {n}, "lr": 0.1}}',
    '{{"eval_every": {n}, "batch": "{n}/{t}", "path": "/a/{n}/{t}"}}',
    "learning rate {n}/{t} of peak, warmup step {n}/{t}",
    "warmup: step {n}/{t} lr 1e-5",
    "11/{n}/2026 12:00:{n} GMT",
    "Step {n}/{t} : RUN pip install torch",
    " => [stage-1 {n}/{t}] COPY . /app",
    "#{n} [build {n}/{t}] RUN make",
    "ninja: [{n}/{t}] Linking CXX executable step",
    "resume from epoch {n}/{t}? no",
    "rank {n}/{t}: loss scale 65536",
    "dataloader worker {n}/{t} loss of connection",
    "GPU util {n}%, memory {n}% full",
    "cpu {n}%  disk {n}/{t} GB  load 1.2/2.4",
    "EarlyStopping counter: {n} out of {t}",
    "Trial {n}/{t} finished with value 0.52",
    "fold {n}/{t}: auc 0.91",
    "layer {n}/{t} mse 0.01",
    "image {n}/{t} /data/a.jpg: 640x480 2 persons, 12.3ms",
    "0: 640x480 {n} persons, {n}/{t} ms",
    "client {n}/{t} accuracy 0.91",
    "Sampling: {n}%|██    | {n}/{t} [00:01<00:02,  3.1it/s]",
    "Quantizing layer {n}/{t} loss 0.002",
    "eval step {n}/{t} loss 0.5",
    "[Eval] iter {n}/{t} acc 0.9",
    "validation batch {n}/{t}: loss 0.7",
]
OTHER_BARS = [
    *(
        "model.safetensors",
        "Downloading data",
        "Map (num_proc=8)",
        "Loading checkpoint shards",
        "Validation DataLoader 0",
    ),
    *("Evaluating", "Generating train split", "Tokenizing", "Fetching 30 files", "Sanity Checking", "Predicting"),
    *("Resolving data files", "Extracting features", "Saving the dataset (1/2 shards)", "Filter", "test"),
]


@pytest.mark.parametrize("text", NO_PROGRESS)
def test_lines_that_count_something_else_are_no_progress(text: str) -> None:
    readers = LogReader("python train.py --epochs 30"), LogReader("python train.py")
    for n in range(1, 100):
        piece = (text.format(n=n, t=100) + "\n").encode()
        assert [reader.read(piece, 5.0 * n) for reader in readers] == [None, None]


@pytest.mark.parametrize("name", OTHER_BARS)
def test_bars_of_something_else_are_no_progress(name: str) -> None:
    reader = LogReader()
    for done in range(1, 101):
        assert reader.read(bar(done, 100, name).encode(), 5.0 * done) is None
    loads = bar(45, 100, "weights").replace("45/100", "450M/1.00G").replace("1.00it/s", "12.5MB/s")
    assert mentions(loads) == []


def test_a_bar_that_came_first_is_dropped_when_training_begins() -> None:
    reader = LogReader()
    for done in range(1, 101):
        found = reader.read(bar(done, 100, "crunching").encode(), float(done))
    assert found is not None
    assert (found.done, found.total) == (100, 100)
    for done in range(1, 200):
        found = reader.read(bar(done, 9000, "train").encode(), 100.0 + done)
    assert found is not None
    assert (found.done, found.total) == (199, 9000)


@pytest.mark.parametrize(
    "line",
    [
        "I1119 22:10:00.5 140000 train.py:148] epoch:{n:3d}, train_loss: 0.5, train_accuracy: 50.00, test_loss: 0.6",
        "Epoch {n}: loss 0.5 val_loss 0.6 (12.1 s)",
        "epoch {n} | train acc 0.81 | val acc 0.80",
        "{{'epoch': {n}}}\nEpoch: {n}  Train Loss: 0.5",
    ],
)
def test_results_of_epochs_count_if_the_command_says_how_many(line: str) -> None:
    known, zero, unknown = LogReader("main.py --config.num_epochs=40"), LogReader("a.py --epochs 40"), LogReader("a.py")
    for n in range(1, 11):
        found = known.read((line.format(n=n) + "\n").encode(), 5.0 * n)
        from_0 = zero.read((line.format(n=n - 1) + "\n").encode(), 5.0 * n)
        nothing = unknown.read((line.format(n=n) + "\n").encode(), 5.0 * n)
    assert found is not None
    assert (found.form, found.unit, found.done, found.total) == ("epochs", "epoch", 10, 40)
    assert found.left_s == pytest.approx(150.0, rel=0.1)
    assert found == from_0
    assert nothing is None


def test_a_bar_of_all_steps_stays_the_whole_beside_results_of_epochs() -> None:
    reader = LogReader("train.py")
    for step in range(1, 100):
        found = reader.read(bar(step, 300).encode() + b"\nEpoch 1 loss 0.5\n" * (step == 50), float(step))
    assert found is not None
    assert (found.done, found.total) == (99, 300)


def test_the_fits_of_a_search_are_counted() -> None:
    reader = LogReader("search.py")
    fits = [(candidate, fold) for candidate in range(1, 13) for fold in range(1, 6)]
    # Of two workers, the second is a little ahead.
    ended = [fits[at ^ 1] for at in range(20)]
    for done, (candidate, fold) in enumerate([*ended, fits[20]], 1):
        line = f"[CV {fold}/5; {candidate}/12] END ...........a={candidate};, score=0.525 total time=   1.0s\n"
        found = reader.read(f"[CV {fold}/5; {candidate}/12] START a=1\n{line}".encode(), 1.0 * done)
    assert found is not None
    assert (found.form, found.done, found.total) == ("scikit-learn", 21, 60)


def test_a_bar_that_begins_again_was_an_epoch() -> None:
    known, unknown = LogReader("train.py --epochs 5"), LogReader("train.py")
    for step in range(250):
        text = bar(step % 100 + 1, 100).encode()
        found, nothing = known.read(text, float(step)), unknown.read(text, float(step))
    assert found is not None
    assert (found.done, found.total) == (250, 500)
    # Nobody knows how often it will begin again.
    assert nothing is None


def test_an_evaluation_with_the_same_total_is_no_epoch() -> None:
    reader, now_s = LogReader("train.py --epochs 5"), 0.0
    for step in range(400):
        now_s += 1.0
        train = step // 100 % 2 == 0
        found = reader.read(bar(step % 100 + 1, 100, more=", loss=0.5" if train else "").encode(), now_s)
    assert found is not None
    assert (found.done, found.total) == (200, 500)


def test_a_bar_that_tells_percent_only_is_enough() -> None:
    reader, found = LogReader(), None
    for done in range(1, 600):
        part = int(done / 10)
        found = reader.read(f"\rTraining {'━' * 20}╸{'━' * 19} {part:3d}% 0:01:20".encode(), 3.0 * done)
        if done >= 200:
            assert found is not None
            assert found.left_s == pytest.approx(3.0 * (1000 - done), rel=0.1)


def test_results_inside_an_epoch_are_not_those_of_its_end() -> None:
    reader, found = LogReader(), None
    for step in range(600):
        text = f"Epoch {step // 50 + 1}/20 loss {2 / (step + 1):.3f}\n"
        found = reader.read(text.encode(), float(step))
        if step >= 200:
            assert found is not None
            assert (found.done, found.total, found.unit) == (step // 50, 20, "epoch")


def test_a_total_that_nobody_tells_is_not_made_up() -> None:
    reader = LogReader("train.py --batch-size 32 --lr 1e-4 --warmup-steps 500 --save-steps 1000")
    for step in range(300):
        text = f"step {step} loss 0.5\n{step}it [00:10, 11.0it/s]\niter: {step % 100} lr: 0.1\n"
        assert reader.read(text.encode(), float(step)) is None


def test_the_time_that_a_line_tells_is_enough() -> None:
    reader, found = LogReader(), None
    for step in range(1, 60):
        text = f"iter {step * 10}  loss 0.52  lr 1e-4  eta {clock(3.0 * (1000 - step))}\n"
        found = reader.read(text.encode(), 3.0 * step)
    assert found is not None
    assert found.left_s == pytest.approx(3.0 * (1000 - 59), rel=0.05)
    # Where each epoch has a time of its own, nobody knows how many follow.
    reader = LogReader()
    for step in range(200):
        left = clock(100 - step % 100)
        text = f"Epoch: [{step // 100}]  [{step % 100:3d}/100]  eta: {left}  loss: 0.5  time: 1.0  data: 0.1\n"
        assert reader.read(text.encode(), float(step)) is None


def test_an_evaluation_without_a_name_does_not_take_over() -> None:
    reader, found, now_s = LogReader(), None, 0.0
    for step in range(1, 101):
        now_s += 1.0
        found = reader.read(bar(step, 1000).encode(), now_s)
    for step in range(1, 31):
        now_s += 1.0
        found = reader.read(bar(step, 30).encode(), now_s)
        assert found is not None
        assert found.total == 1000


def test_a_count_that_stands_still_is_forgotten_until_it_grows_again() -> None:
    reader = LogReader()
    for done in range(1, 101):
        reader.read(bar(done, 200).encode(), 10.0 * done)
    assert reader.look(1400.0) is not None
    assert reader.look(1700.0) is None
    assert [reader.read(bar(done, 200).encode(), 700.0 + 10.0 * done) is None for done in range(101, 105)][-1] is False
    for done in range(105, 201):
        reader.read(bar(done, 200).encode(), 700.0 + 10.0 * done)
    # It has done its work, and goes on with something else.
    assert reader.look(2800.0) is not None
    assert reader.look(2900.0) is None


@pytest.mark.parametrize("text", ["Epoch {n}/50", "=== epoch {n} of 50, lr 0.1 ===", "Epoch {n}/50 loss 0.5 acc 0.9"])
def test_lines_about_epochs_are_enough(text: str) -> None:
    reader, results = LogReader(), "loss" in text
    for n in range(1, 11):
        found = reader.read((text.format(n=n) + "\n").encode(), 60.0 * (n if results else n - 1))
    assert found is not None
    # Ten are over if results are told, and else the tenth begins.
    assert (found.done, found.total, found.unit) == (10 if results else 9, 50, "epoch")
    assert found.left_s == pytest.approx(60.0 * (50 - found.done))


def test_one_value_or_one_moment_is_no_evidence() -> None:
    reader = LogReader()
    assert reader.read(b"".join(bar(done, 100).encode() for done in range(90)), 1.0) is None
    assert reader.read(b"", 100.0) is None
    assert reader.read(bar(91, 100).encode(), 101.0) is None
    assert reader.read(bar(92, 100).encode(), 102.0) is not None


def test_nonsense_is_no_progress() -> None:
    reader = LogReader()
    for now_s in range(100):
        text = f"step {10**30 + now_s}/{10**31} loss nan\nstep {now_s}/0 loss 1\nstep 9{now_s}/3 loss 1\n"
        assert reader.read(text.encode(), float(now_s)) is None


def test_settings_are_hints() -> None:
    said = "python main.py --epochs 90 --warmup-epochs 5 trainer.max_epochs=90 --batch-size 32"
    assert [(one.word, one.total) for one in hints(said, command=True)] == [("epochs", 90), ("maxepochs", 90)]
    assert [one.total for one in hints("  Total optimization steps = 3,750")] == [3750]
    assert [one.unit for one in hints("Namespace(arch='resnet18', epochs=90, start_epoch=0)")] == ["epochs"]
    assert hints("it has trained for epochs 3") == []
    # Two settings that differ say nothing.
    reader = LogReader("train --epochs 5 --max-epochs 7")
    for step in range(150):
        found = reader.read(bar(step % 100 + 1, 100, f"Epoch {step // 100}").encode(), float(step))
    assert found is None


PRINTED = """Overriding config with config/train_small.py:
eval_iters = 200
max_iters = 5000
lr_decay_iters = 5000
Namespace(epochs=90, steps_per_epoch=100)
max_epochs: 90
"""
"""What scripts print of their settings, before the options of the command overrule them."""


@pytest.mark.parametrize(
    "options",
    [
        "config/train_small.py --device=cpu --max_iters=3000 --eval_iters=20 --lr_decay_iters=3000",
        "--max_iters 3000",
        "--max-iters=3000",
        "--max-steps 3000",
        "--training-steps 3000",
        "++trainer.max_steps=3000",
        "--max_iters=5000 --max_iters=3000",
    ],
)
def test_the_command_wins_over_settings_in_the_log(options: str) -> None:
    reader, found = LogReader(f"python train.py {options}"), None
    reader.read(PRINTED.encode(), 0.0)
    for at in range(1, 40):
        evaluated = "step 250: train loss 2.4000, val loss 2.5000\n" if at == 25 else ""
        text = f"{evaluated}iter {10 * at}: loss 2.5, time 30.01ms, mfu 1.02%\n"
        found = reader.read(text.encode(), 2.0 * at)
    assert found is not None
    assert (found.done, found.total) == (390.0, 3000.0)


@pytest.mark.parametrize("options", ["--epochs 3", "--max-epochs=3", "+trainer.max_epochs=3", "num_train_epochs=3"])
def test_the_epochs_of_the_command_win(options: str) -> None:
    reader, found = LogReader(f"python train.py {options}"), None
    reader.read(PRINTED.encode(), 0.0)
    for step in range(150):
        found = reader.read(bar(step % 100 + 1, 100, f"Epoch {step // 100}").encode(), float(step))
    assert found is not None
    assert (found.done, found.total) == (150.0, 300.0)


def test_commands_of_a_script_that_differ_say_nothing() -> None:
    reader = LogReader("python pretrain.py --epochs 5\npython tune.py --epochs 3")
    for step in range(150):
        found = reader.read(bar(step % 100 + 1, 100, f"Epoch {step // 100}").encode(), float(step))
    assert found is None


def test_the_example_that_knows_nothing_of_us_is_understood(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = Path(__file__).parents[3] / "examples" / "unmodified" / "train.py"
    reader, now_s, seen = LogReader(f"python {script}"), [0.0], []

    def sleep(pause_s: float) -> None:
        now_s[0] += pause_s
        seen.append(reader.read(capsys.readouterr().out.encode(), now_s[0]))

    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(sys, "argv", [str(script)])
    runpy.run_path(str(script), run_name="__main__")
    half = seen[len(seen) // 2]
    assert half is not None
    assert half.done / half.total == pytest.approx(0.5, abs=0.05)
    assert half.left_s == pytest.approx(now_s[0] / 2, rel=0.1)


def test_the_pace_counts_pauses_as_often_as_they_come() -> None:
    pace, now_s = CountPace(), 0.0
    for step in range(1, 1001):
        now_s += 1.0 + (20.0 if step % 100 == 0 else 0.0)
        pace.note(now_s, float(step))
    assert pace.per_s() == pytest.approx(1 / 1.2, rel=0.03)


def test_the_log_before_the_training_tells_nothing() -> None:
    assert LogReader().read(BEFORE.encode() * 3, 100.0) is None
    assert all(one.kind == 0 for line in re.split(r"[\r\n]", BEFORE) for one in mentions(line))
