"""Logs of whole training runs, as frameworks write them, with the times at which each part is written.

The shapes follow what the frameworks print. The runs have slow first steps, noise, a change of speed, evaluations
between epochs, and may be resumed from a checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import NamedTuple


class Written(NamedTuple):
    """A part of a log: when it was written in seconds of run time, and which part of the work was done then."""

    time_s: float
    done: float
    text: str


@dataclass
class Training:
    """A training run: `epochs` of `steps`, each `step_s` seconds, an evaluation of `eval_steps` after each epoch."""

    seed: int
    epochs: int = 12
    steps: int = 250
    step_s: float = 1.0
    slow_steps: int = 5
    eval_steps: int = 17
    first: int = 0
    shift: float = 1.3

    def __post_init__(self) -> None:
        """Vary the run by its seed."""
        self.rng = Random(self.seed)
        self.epochs = self.rng.choice([10, 12, 20, 30])
        self.steps = self.rng.choice([130, 250])
        self.step_s = self.rng.choice([0.7, 3.0])
        self.shift = self.rng.choice([0.7, 1.0, 1.3])
        self.first = self.rng.choice([0, 0, self.epochs // 3 * self.steps])

    @property
    def total(self) -> int:
        """The steps of all epochs."""
        return self.epochs * self.steps

    @property
    def eval_s(self) -> float:
        """How long an evaluation takes."""
        return 0.04 * self.steps * self.step_s

    def events(self) -> Iterator[tuple[str, int, int, float, float]]:
        """What happens: kind, epoch, index within it, time and part of the work that is done."""
        now_s, whole = self.rng.uniform(5.0, 60.0), self.total - self.first
        begun = 0
        for epoch in range(self.first // self.steps, self.epochs):
            yield "epoch", epoch, 0, now_s, begun / whole
            for step in range(self.steps):
                slow = 20.0 if begun < self.slow_steps else self.shift if begun < 0.04 * whole else 1.0
                now_s += self.step_s * slow * self.rng.uniform(0.8, 1.25)
                begun += 1
                yield "step", epoch, step + 1, now_s, begun / whole
            for step in range(self.eval_steps):
                now_s += self.eval_s / self.eval_steps
                yield "eval", epoch, step + 1, now_s, begun / whole
            yield "end", epoch, 0, now_s, begun / whole


Render = Callable[[str, int, int, Training], str]


def clock(seconds: float) -> str:
    """A time as tqdm writes it."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes:02}:{rest:02}"


def bar(done: float, total: float, label: str = "", more: str = "") -> str:
    """A bar of tqdm."""
    part = int(10 * done / total)
    blocks = "█" * part + ("▌" if part < 10 else "")
    head = f"{label}: " if label else ""
    times = f"{clock(done)}<{clock(total - done)}"
    return f"\r{head}{100 * done / total:3.0f}%|{blocks:<10}| {done}/{total} [{times},  1.00it/s{more}]"


def loss_at(epoch: int, step: int, run: Training) -> float:
    """A loss that falls."""
    return 2.0 / (1.0 + 0.1 * (epoch + step / run.steps))


def plain_tqdm(kind: str, epoch: int, step: int, run: Training) -> str:
    """One bar over all steps, with evaluation bars that go away."""
    if kind == "step":
        done = epoch * run.steps + step
        return bar(done, run.total, "", f", loss={loss_at(epoch, step, run):.3f}")
    return bar(step, run.eval_steps, "Evaluating") if kind == "eval" else ""


def nested_tqdm(kind: str, epoch: int, step: int, run: Training) -> str:
    """Bars without names: the outer one counts epochs."""
    if kind == "epoch":
        return bar(epoch, run.epochs) + "\n"
    if kind == "step":
        return bar(step, run.steps) + "\x1b[A"
    return bar(step, run.eval_steps) + "\x1b[A" if kind == "eval" else ""


def named_tqdm(kind: str, epoch: int, step: int, run: Training) -> str:
    """A bar for each epoch, with its number in its name."""
    if kind == "step":
        label = f"Epoch {epoch + 1}/{run.epochs}"
        return bar(step, run.steps, label, f", loss={loss_at(epoch, step, run):.3f}") + "\n" * (step == run.steps)
    return bar(step, run.eval_steps, "Validation") + "\n" * (step == run.eval_steps) if kind == "eval" else ""


def trainer(kind: str, epoch: int, step: int, run: Training) -> str:
    """Hugging Face Trainer."""
    done = epoch * run.steps + step
    if kind == "epoch" and epoch == run.first // run.steps:
        return (
            "***** Running training *****\n  Num examples = 8,000\n"
            f"  Num Epochs = {run.epochs:,}\n  Instantaneous batch size per device = 8\n"
            f"  Total optimization steps = {run.total:,}\n  Number of trainable parameters = 109,483,778\n"
            + bar(0, run.total)
        )
    if kind == "step":
        text = bar(done, run.total)
        if done % 50 == 0:
            told = f"'loss': {loss_at(epoch, step, run):.4f}, 'grad_norm': 1.2, 'learning_rate': 4e-05"
            text += f"\n{{{told}, 'epoch': {done / run.steps:.2f}}}\n" + bar(done, run.total)
        return text
    return "\n" * (step == 1) + bar(step, run.eval_steps) + "\x1b[A" if kind == "eval" else ""


def trainer_without_bars(kind: str, epoch: int, step: int, run: Training) -> str:
    """Hugging Face Trainer with `disable_tqdm`."""
    if kind == "epoch" and epoch == run.first // run.steps:
        return (
            f"***** Running training *****\n  Num Epochs = {run.epochs}\n  Total optimization steps = {run.total:,}\n"
        )
    if kind == "step" and step % 5 == 0:
        at = epoch + step / run.steps
        return f"{{'loss': '{loss_at(epoch, step, run):.4f}', 'learning_rate': '4e-05', 'epoch': '{at:.3f}'}}\n"
    if kind == "eval" and step == run.eval_steps:
        return f"{{'eval_loss': 0.71, 'eval_runtime': 3.5, 'eval_steps_per_second': 9.1, 'epoch': {epoch + 1}.0}}\n"
    return ""


def lightning(kind: str, epoch: int, step: int, run: Training) -> str:
    """Lightning's bar. How many epochs there are is in the command only."""
    if kind == "epoch" and epoch == run.first // run.steps:
        sanity = "".join(bar(done, 2, "Sanity Checking DataLoader 0") for done in range(3))
        return f"LOCAL_RANK: 0 - CUDA_VISIBLE_DEVICES: [0]\n13.5 M    Trainable params\n{sanity}\n"
    if kind == "step":
        more = f", v_num=0, train_loss={loss_at(epoch, step, run):.3f}"
        return bar(step, run.steps, f"Epoch {epoch}", more)
    return bar(step, run.eval_steps, "Validation DataLoader 0") if kind == "eval" else ""


def keras_2(kind: str, epoch: int, step: int, run: Training) -> str:
    """Keras 2: backspaces and a bar of signs."""
    if kind == "epoch":
        return f"Epoch {epoch + 1}/{run.epochs}\n"
    if kind == "step":
        part = int(29 * step / run.steps)
        signs = "=" * part + ">" + "." * (29 - part)
        text = f"{step}/{run.steps} [{signs}] - ETA: 1:20 - loss: {loss_at(epoch, step, run):.4f} - accuracy: 0.51"
        return "\b" * 80 + text
    return " - val_loss: 0.61 - val_accuracy: 0.8\n" if kind == "end" else ""


def keras_3(kind: str, epoch: int, step: int, run: Training) -> str:
    """Keras 3: heavy lines, colours and carriage returns."""
    if kind == "epoch":
        return f"Epoch {epoch + 1}/{run.epochs}\n"
    if kind == "step":
        heavy = 20 * step // run.steps
        mark = f"\x1b[32m{'━' * heavy}\x1b[0m\x1b[37m{'━' * (20 - heavy)}\x1b[0m"
        more = f"accuracy: 0.81 - loss: {loss_at(epoch, step, run):.4f}"
        return f"\r\x1b[1m{step}/{run.steps}\x1b[0m {mark} \x1b[1m12s\x1b[0m 7ms/step - {more}"
    return "\n" if kind == "end" else ""


def imagenet(kind: str, epoch: int, step: int, run: Training) -> str:
    """PyTorch's ImageNet example. How many epochs there are is in the command only."""
    if kind == "step" and step % 10 == 1:
        loss = loss_at(epoch, step, run)
        return (
            f"Epoch: [{epoch}][{step:4d}/{run.steps}]\tTime  0.302 (  0.411)\tData  0.001 (  0.102)\t"
            f"Loss {loss:.4e} ({loss:.4e})\tAcc@1   0.78 (  0.31)\tAcc@5   3.12 (  1.44)\n"
        )
    if kind == "eval" and step % 10 == 1:
        return f"Test: [{step:3d}/{run.eval_steps}]\tTime  0.9 (0.9)\tLoss 5.1e+00 (5.1e+00)\tAcc@1  3.1 (3.1)\n"
    return " *   Acc@1 12.340 Acc@5 30.120\n" if kind == "end" else ""


def mnist(kind: str, epoch: int, step: int, run: Training) -> str:
    """PyTorch's MNIST example: it counts samples."""
    if kind == "step" and step % 10 == 1:
        done, total, loss = 64 * (step - 1), 64 * run.steps, loss_at(epoch, step, run)
        return f"Train Epoch: {epoch + 1} [{done}/{total} ({100 * done / total:.0f}%)]\tLoss: {loss:.6f}\n"
    return "\nTest set: Average loss: 0.0512, Accuracy: 9833/10000 (98%)\n\n" if kind == "end" else ""


def language_model(kind: str, epoch: int, step: int, run: Training) -> str:
    """PyTorch's example of a language model. How many epochs there are is in the command only."""
    if kind == "step" and step % 10 == 0:
        loss = loss_at(epoch, step, run)
        return (
            f"| epoch {epoch + 1:3d} | {step:5d}/{run.steps:5d} batches | lr 20.00 | ms/batch 12.50 | "
            f"loss {loss:5.2f} | ppl {100 * loss:8.2f}\n"
        )
    rule = "-" * 89
    end = f"{rule}\n| end of epoch {epoch + 1:3d} | time: 12.50s | valid loss  5.10 | valid ppl   164.02\n{rule}\n"
    return end if kind == "end" else ""


def dcgan(kind: str, epoch: int, step: int, run: Training) -> str:
    """PyTorch's example of a GAN."""
    if kind == "step" and step % 5 == 0:
        head = f"[{epoch}/{run.epochs}][{step - 1}/{run.steps}]"
        return f"{head} Loss_D: {loss_at(epoch, step, run):.4f} Loss_G: 2.1034 D(x): 0.7231 D(G(z)): 0.4012 / 0.1504\n"
    return ""


def timm(kind: str, epoch: int, step: int, run: Training) -> str:
    """timm's script."""
    if kind == "epoch" and epoch == run.first // run.steps:
        return f"Scheduled epochs: {run.epochs}. LR stepped per epoch.\n"
    if kind == "step" and step % 10 == 1:
        part, loss = 100 * (step - 1) / (run.steps - 1), loss_at(epoch, step, run)
        return (
            f"Train: {epoch} [{step - 1:>4d}/{run.steps} ({part:>3.0f}%)]  Loss: {loss:.4g} ({loss:.3g})  "
            f"Time: 0.302s,  847.68/s  (0.411s,  622.87/s)  LR: 1.000e-05  Data: 0.001 (0.1)\n"
        )
    return (
        f"Test: [{step:>4d}/{run.eval_steps}]  Time: 0.1 (0.1)  Loss:  0.9 (0.9)  Acc@1: 78.1\n"
        if kind == "eval"
        else ""
    )


def megatron(kind: str, epoch: int, step: int, run: Training) -> str:
    """Megatron-LM."""
    done = epoch * run.steps + step
    if kind == "step" and done % 10 == 0:
        return (
            f" [2026-11-18 12:00:00] iteration {done:8d}/{run.total:8d} | consumed samples: {done * 512:12d} | "
            f"elapsed time per iteration (ms): 1021.4 | learning rate: 1.500E-04 | global batch size:   512 | "
            f"lm loss: {loss_at(epoch, step, run):.6E} | loss scale: 1.0 | grad norm: 0.412 |\n"
        )
    if kind == "eval" and step == run.eval_steps:
        return f" validation loss at iteration {done} | lm loss value: 2.1E+00 | lm loss PPL: 8.2E+00 | \n"
    return ""


def mmengine(kind: str, epoch: int, step: int, run: Training) -> str:
    """MMEngine, as of mmdet and others. How many epochs there are follows from the time that is left."""
    if kind == "step" and step % 10 == 0:
        left = (run.total - epoch * run.steps - step) * run.step_s
        hours, rest = divmod(int(left), 3600)
        eta = f"{hours}:{rest // 60:02}:{rest % 60:02}"
        return (
            f"11/18 12:00:00 - mmengine - INFO - Epoch(train)  [{epoch + 1}][{step:3d}/{run.steps}]  lr: 1.0000e-02  "
            f"eta: {eta}  time: {run.step_s:.4f}  data_time: 0.0335  loss: {loss_at(epoch, step, run):.4f}\n"
        )
    if kind == "eval" and step % 4 == 0:
        head = "11/18 12:00:00 - mmengine - INFO - Epoch(val)"
        return f"{head} [{epoch + 1}][{step:2d}/{run.eval_steps}]    eta: 0:00:01  time: 0.05\n"
    return ""


def detectron(kind: str, epoch: int, step: int, run: Training) -> str:
    """Detectron2: a count without a total, and the time that is left."""
    done = epoch * run.steps + step
    if kind == "step" and done % 20 == 0:
        left = (run.total - done) * run.step_s * (1.0 + 0.02 * (done % 3 - 1))
        hours, rest = divmod(int(left), 3600)
        eta = f"{hours}:{rest // 60:02}:{rest % 60:02}"
        loss = loss_at(epoch, step, run)
        return (
            f"[11/18 12:00:00 d2.utils.events]:  eta: {eta}  iter: {done - 1}  total_loss: {loss:.4g}  "
            f"loss_cls: 0.595  time: {run.step_s:.4f}  data_time: 0.0222  lr: 1.6e-05  max_mem: 2725M\n"
        )
    if kind == "eval" and step % 5 == 0:
        head = "[11/18 12:00:00 d2.evaluation.evaluator]: Inference done"
        return f"{head} {step}/{run.eval_steps}. 0.05 s / img. ETA=0:00:10\n"
    return ""


def fairseq(kind: str, epoch: int, step: int, run: Training) -> str:
    """fairseq's logs in JSON, with the settings at the top."""
    done = epoch * run.steps + step
    if kind == "epoch" and epoch == run.first // run.steps:
        said = f"{{'optimization': {{'max_epoch': 0, 'max_update': {run.total}, 'lr': [0.0005]}}}}"
        return f"2026-11-18 12:00:00 | INFO | fairseq_cli.train | {said}\n"
    if kind == "step" and done % 10 == 0:
        return (
            f'2026-11-18 12:00:00 | INFO | train_inner | {{"epoch": {epoch + 1}, "update": {done / run.steps:.3f}, '
            f'"loss": "{loss_at(epoch, step, run):.3f}", "wps": "288.7", "num_updates": "{done}", "lr": "2e-05"}}\n'
        )
    told = f'{{"epoch": {epoch + 1}, "valid_loss": "8.7", "valid_num_updates": "{done}"}}'
    return f"2026-11-18 12:00:00 | INFO | valid | {told}\n" if kind == "end" else ""


def tutorial(kind: str, epoch: int, step: int, run: Training) -> str:
    """The lines that many scripts print."""
    if kind == "step" and step % 10 == 0:
        return f"Epoch [{epoch + 1}/{run.epochs}], Step [{step}/{run.steps}], Loss: {loss_at(epoch, step, run):.4f}\n"
    return f"Accuracy of the network on the {step}/{run.eval_steps} test images: 97 %\n" if kind == "eval" else ""


def steps_only(kind: str, epoch: int, step: int, run: Training) -> str:
    """Lines with a count of all steps, after a date."""
    done = epoch * run.steps + step
    if kind == "step" and done % 10 == 0:
        head, loss = "2026-11-18 12:00:00,123 INFO train.py:77 -", loss_at(epoch, step, run)
        return f"{head} step {done}/{run.total} loss {loss:.3f} 11/18\n"
    return ""


def lightning_rich(kind: str, epoch: int, step: int, run: Training) -> str:
    """Lightning's bar of rich, which names the last epoch. It is drawn again in place."""
    heavy = 40 * step // run.steps
    mark = f"\x1b[38;2;98;6;224m{'━' * heavy}╸\x1b[0m\x1b[38;5;237m{'━' * (39 - heavy)}\x1b[0m"
    if kind == "step":
        loss = loss_at(epoch, step, run)
        more = f"\x1b[2m0:00:10 • 0:01:20\x1b[0m 11.05it/s v_num: 0.000 train_loss: {loss:.3f}"
        return f"\r\x1b[2KEpoch {epoch}/{run.epochs - 1} {mark} {step}/{run.steps} {more}"
    return f"\r\x1b[2KValidation {mark} {step}/{run.eval_steps} 0:00:01 • 0:00:02 21.1it/s" if kind == "eval" else ""


def rich_bars(kind: str, epoch: int, step: int, run: Training) -> str:
    """A bar of rich over all steps: its name, the bar, the count, percent, and times."""
    if kind == "step":
        done = epoch * run.steps + step
        part = 100 * done / run.total
        mark = f"{'━' * int(0.4 * part)}╸{'━' * int(40 - 0.4 * part)}"
        return f"\r\x1b[2KTraining... {mark} {done}/{run.total} {part:3.0f}% 0:01:20"
    return ""


def yolo(kind: str, epoch: int, step: int, run: Training) -> str:
    """Ultralytics: a table with a bar of its own in each row."""
    if kind == "epoch":
        return "\n      Epoch    GPU_mem   box_loss   cls_loss   dfl_loss  Instances       Size\n"
    done = 12 * step // (run.steps if kind == "step" else run.eval_steps)
    mark = f"{'━' * done}{'─' * (12 - done)}"
    if kind == "step":
        head = f"\r\x1b[K{epoch + 1:>7}/{run.epochs}      2.35G      1.081     0.4706      1.084         10        640:"
        return f"{head} {100 * step // run.steps}% {mark} {step}/{run.steps} 2.3it/s 3.5s<0.1s"
    if kind == "eval":
        head = "\r\x1b[K                 Class     Images  Instances      Box(P          R      mAP50  mAP50-95):"
        return f"{head} {100 * step // run.eval_steps}% {mark} {step}/{run.eval_steps} 2.1it/s 1.2s<0.4s"
    return "\n                   all        722       1444      0.989       0.99      0.993      0.681\n"


def fastai(kind: str, epoch: int, step: int, run: Training) -> str:
    """fastai outside of notebooks."""
    if kind == "step":
        blocks = "█" * (20 * step // run.steps)
        share = f"{100 * step / run.steps:.2f}% [{step}/{run.steps} 00:12<00:15 {loss_at(epoch, step, run):.4f}]"
        return f"\rEpoch {epoch + 1}/{run.epochs} : |{blocks}{'-' * (20 - len(blocks))}| {share}"
    return f"\r{epoch}         0.52     0.31      0.91     00:12\n" if kind == "end" else ""


def eta(run: Training, done: int) -> str:
    """The time that is left, as the run itself tells it."""
    hours, rest = divmod(int((run.total - done) * run.step_s), 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}"


def paddle_seg(kind: str, epoch: int, step: int, run: Training) -> str:
    """PaddleSeg: the epoch, and a count of all iterations."""
    done = epoch * run.steps + step
    if kind == "step" and done % 10 == 0:
        return (
            f"2026-11-18 12:00:00 [INFO]\t[TRAIN] epoch: {epoch + 1}, iter: {done}/{run.total}, "
            f"loss: {loss_at(epoch, step, run):.4f}, lr: 0.009295, batch_cost: {run.step_s:.4f}, "
            f"reader_cost: 0.002, ips: 5.7421 samples/sec | ETA 0{eta(run, done)}\n"
        )
    return ""


def paddle_ocr(kind: str, epoch: int, step: int, run: Training) -> str:
    """PaddleOCR: the epoch of several, and a count of all steps without its total."""
    done = epoch * run.steps + step
    if kind == "step" and done % 10 == 0:
        return (
            f"[2026/11/18 12:00:00] ppocr INFO: epoch: [{epoch + 1}/{run.epochs}], global_step: {done}, lr: 0.000005, "
            f"loss: {loss_at(epoch, step, run):.6f}, avg_reader_cost: 0.00971 s, avg_batch_cost: {run.step_s:.5f} s, "
            f"avg_samples: 64.0, ips: 355.10891 samples/s, eta: {eta(run, done)}\n"
        )
    return ""


def paddle_det(kind: str, epoch: int, step: int, run: Training) -> str:
    """PaddleDetection: how many epochs there are follows from the time that is left."""
    if kind == "step" and step % 10 == 0:
        loss, left = loss_at(epoch, step, run), eta(run, epoch * run.steps + step)
        return (
            f"[11/18 12:00:00] ppdet.engine INFO: Epoch: [{epoch}] [{step:3d}/{run.steps}] learning_rate: 0.000025 "
            f"loss_xy: 7.0 loss: {loss:.6f} eta: {left} batch_cost: {run.step_s:.4f} data_cost: 0.1 ips: 1.7 images/s\n"
        )
    return ""


def json_lines(kind: str, epoch: int, step: int, run: Training) -> str:
    """Lines of JSON."""
    done = epoch * run.steps + step
    if kind == "step" and done % 10 == 0:
        return f'{{"step": {done}, "max_steps": {run.total}, "loss": {loss_at(epoch, step, run):.4f}, "lr": 1e-4}}\n'
    return f'{{"step": {done}, "eval_loss": 0.7}}\n' if kind == "end" else ""


def all_steps(kind: str, epoch: int, step: int, run: Training) -> str:
    """The epoch of several, and a count that goes on from epoch to epoch."""
    done = epoch * run.steps + step
    if kind == "step" and done % 10 == 0:
        head, loss = "2026-11-18 12:00:00.123 | INFO     | __main__:train:77 -", loss_at(epoch, step, run)
        return f"{head} epoch={epoch + 1}/{run.epochs} step={done}/{run.total} loss={loss:.3f}\n"
    return ""


def lone_steps(kind: str, epoch: int, step: int, run: Training) -> str:
    """A count without a total, which is in the command."""
    done = epoch * run.steps + step
    if kind == "step" and done % 10 == 0:
        return f"train step: {done}, loss: {loss_at(epoch, step, run):.4f}, steps/s: 11.2\n"
    return f"eval step: {step}, loss: 0.9\n" if kind == "eval" else ""


def table(kind: str, epoch: int, step: int, run: Training) -> str:
    """Stable-Baselines3's tables. How many time steps there are is in the command only."""
    done = epoch * run.steps + step
    if kind == "step" and done % 10 == 0:
        loss = loss_at(epoch, step, run)
        return (
            f"{'-' * 40}\n| rollout/                |             |\n|    ep_len_mean          | 22.4        |\n"
            f"| time/                   |             |\n|    fps                  | 1113        |\n"
            f"|    iterations           | {done:<11} |\n|    total_timesteps      | {done:<11} |\n"
            f"| train/                  |             |\n|    loss                 | {loss:<11.3f} |\n{'-' * 40}\n"
        )
    return ""


def percents(kind: str, epoch: int, step: int, run: Training) -> str:
    """Lines with percent only."""
    done = epoch * run.steps + step
    return f"12:00:00 Progress: {100 * done / run.total:.1f}%\n" if kind == "step" and done % 10 == 0 else ""


FORMS: dict[str, Render] = {
    "tqdm": plain_tqdm,
    "tqdm, nested": nested_tqdm,
    "tqdm, named": named_tqdm,
    "Hugging Face Trainer": trainer,
    "Hugging Face Trainer without bars": trainer_without_bars,
    "Lightning": lightning,
    "Keras 2": keras_2,
    "Keras 3": keras_3,
    "ImageNet example": imagenet,
    "MNIST example": mnist,
    "language model": language_model,
    "DCGAN": dcgan,
    "timm": timm,
    "Megatron": megatron,
    "MMEngine": mmengine,
    "Detectron2": detectron,
    "fairseq": fairseq,
    "tutorial": tutorial,
    "steps": steps_only,
    "Lightning, rich": lightning_rich,
    "rich": rich_bars,
    "YOLO": yolo,
    "tqdm, fastai": fastai,
    "steps, PaddleSeg": paddle_seg,
    "steps, PaddleOCR": paddle_ocr,
    "ImageNet example, PaddleDetection": paddle_det,
    "steps, JSON": json_lines,
    "steps, of all epochs": all_steps,
    "steps, lone": lone_steps,
    "steps, Stable-Baselines3": table,
    "percent": percents,
}
COMMANDS = {
    "Lightning": "python fit.py --trainer.max_epochs={epochs}",
    "ImageNet example": "python main.py -a resnet50 --epochs {epochs} /data",
    "MNIST example": "python main.py --epochs {epochs}",
    "language model": "python main.py --cuda --epochs {epochs}",
    "steps, lone": "python train.py --max-steps {total}",
    "steps, Stable-Baselines3": "python ppo.py --total-timesteps {total}",
}
BEFORE = (
    "Collecting torch==2.13.0\n  Downloading torch-2.13.0-cp312.whl (755.5 MB)\n"
    + "".join(bar(done, 100, "model.safetensors").replace("it/s", "MB/s") for done in (10, 55, 100))
    + "\n"
    + "".join(bar(done, 4, "Loading checkpoint shards") for done in range(5))
    + "\n"
    + "".join(bar(done, 8000, "Map") for done in (0, 1000, 5000, 8000))
    + "\nGPU 1/8\nloaded 3/4 shards\n"
)


def written(form: str, run: Training) -> tuple[str, list[Written]]:
    """The command of a run, and its log."""
    parts = [Written(1.0, 0.0, BEFORE)]
    for kind, epoch, step, time_s, done in run.events():
        text = FORMS[form](kind, epoch, step, run)
        parts.append(Written(time_s, done, text))
    return COMMANDS.get(form, "python train.py").format(epochs=run.epochs, total=run.total), parts
