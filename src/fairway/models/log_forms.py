"""What a line of a training log says about progress: the forms of bars and lines that frameworks write.

A form is recognised by words or marks that only progress has. Two numbers with a slash between them are not enough:
dates, versions, shards and GPUs look like that, too. Whether what a line says is to be believed is decided in
`log_progress`, from many lines.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

MOST_LINE = 1000
"""The beginning of a line that is looked at, in characters. All forms tell their progress there."""
MOST = 1e12
"""Counts that are higher are nonsense."""
OTHER, UNKNOWN, BAR, TRAINING = range(4)
"""How much a line looks like training: it is surely something else, nobody knows, it is a bar without a name that
frameworks write, or it says so."""
_NEAR = 24
TRAINER = "Hugging Face Trainer"
FEW = 20
"""A count with fewer steps in all has to tell a metric, too: recipes have steps as well."""


class Mention(NamedTuple):
    """What a line says: `done` of `total`, in the epoch `epoch` of `epochs`, as it counts them. What it does not say is
    NaN.

    `form` is the name of the form, `label` what stands before the count, without numbers. `kind` is how much it looks
    like training. `base` is the number of the first epoch in this form; NaN if both 0 and 1 are usual. `over` says that
    a line about an epoch was written at its end. `left_s` is the time that is left of the whole, by its own word, and
    `step_s` that of a step. `whole` says that it surely counts all of the training, and not an epoch.
    """

    form: str
    done: float = math.nan
    total: float = math.nan
    epoch: float = math.nan
    epochs: float = math.nan
    label: str = ""
    kind: int = TRAINING
    base: float = math.nan
    over: bool = False
    loss: float = math.nan
    left_s: float = math.nan
    step_s: float = math.nan
    whole: bool = False


class Hint(NamedTuple):
    """A setting that says how much there is to do: so many epochs or steps in all. `word` is its name."""

    word: str
    unit: str
    total: float


_PERHAPS = re.compile(
    r"\d\s*(?:/|%|of\b|out of\b)|'epoch'|\"epoch\"|[Ee]poch\s*[:=#\[]?\s*\d|num_updates|timesteps|"
    r"(?:[Ss]teps?|STEP|[Ii]ter|[Ii]terations?|\bit|[Uu]pdate)['\"]?\s*[:=|#]?\s*\d"
)
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07]*\x07|[@-_])")
_N = r"(\d[\d,]*)"
_REAL = r"(\d+(?:\.\d+)?)"
_TQDM = re.compile(
    r"(?P<label>.*?)\d{1,3}%(?:\|[^|]*\|)?\s*(?P<n>\d[\d.]*[kMGT]?)/(?P<t>\d[\d.]*[kMGT]?)"
    r"\s*\[(?P<time>[\d:.]+)<(?P<left>[^,\]]*),?\s*(?P<rest>[^\]]*)"
)
_RICH = re.compile(
    r"(?P<label>[^━╸╺─]*?)(?:\d{1,3}%:?\s+)?(?:[━╸╺─]{5,}|-{3}[- ]{7,}(?=.*•))\s*"
    r"(?:(?P<n>\d[\d.]*[kMGT]?)/(?P<t>\d[\d.]*[kMGT]?)(?=\s|$))?"
    r"\s*(?:(?P<percent>\d{1,3}(?:\.\d+)?)%)?(?P<rest>.*)"
)
_FASTAI = re.compile(
    r"(?P<label>.*?)\|[█-]*\|\s*\d{1,3}(?:\.\d+)?%\s*\[(?P<n>\d+)/(?P<t>\d+) "
    r"(?P<time>[\d:]+)<(?P<left>[\d:]+)(?P<rest>[^\]]*)"
)
_BYTES = re.compile(
    r"^\s*[\d.?]+ ?[kKMGT]?i?B/s|^\s*[\d.]+s/[kKMGT]?i?B\b|^\s*(?:[kKMGT]i?B|bytes)\b|\b[\d.]+ ?[kKMGT]i?B/s",
    re.IGNORECASE,
)
_SCALE = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_OTHERS = re.compile(
    r"\b(?:val|valid\w*|eval\w*|test\w*|predict\w*|infer\w*|sanity|down\w*|upload\w*|load\w*|map|filter\w*|generat\w*|"
    r"tokeni[sz]\w*|extract\w*|accum\w*|micro\w*|warmup|resolv\w*|fetch\w*|collect\w*|shards?|processing|processed|prepar\w*|preprocess\w*|pars\w*|build\w*|"
    r"creat\w*|cach\w*|unpack\w*|import\w*|read\w*|writ\w*|sav\w*|convert\w*|quantiz\w*|render\w*|merg\w*|files?|"
    r"comput\w*|scor\w*|ranking|index\w*|encod\w*|decod\w*|pack\w*|group\w*|truncat\w*|add\w*|install\w*|scan\w*|"
    r"class\s+images|resum\w*|line \d+, in|"
    r"captur\w*|warm\w*|compil\w*|flatten\w*|casting|sort\w*|shuffl\w*|calibrat\w*|sampling|profil\w*|materializ\w*|"
    r"[\w.-]+\.(?:safetensors|bin|json|zip|gz|tar|txt|parquet|pt|pth|model|h5|csv|whl))\b",
    re.IGNORECASE,
)
_TRAINS = re.compile(r"\b(?:train\w*|epochs?|fit\w*|pretrain\w*|finetun\w*|loss|steps?|iters?|iterations?)\b", re.I)
_METRIC = re.compile(
    r"\b(?:[\w/]*loss(?:es)?|acc(?:uracy)?|lr|learning.rate|ppl|perplexity|eta|grad.?norm|reward|mse|mae|auc|"
    r"it/s|s/it|(?:samples|tokens|images|imgs?|sec)(?:/|.per.)\w+)\b",
    re.IGNORECASE,
)
_RESULT = re.compile(r"\b(?:[\w/]*loss(?:es)?|acc(?:uracy)?|ppl|perplexity|reward|mse|mae|auc|f1)\b", re.IGNORECASE)
_EPOCH = re.compile(r"\bep(?:ochs?)?\b\s*[:=#\[(]?\s*\[?\s*(\d+)(?:\s*(?:/|of)\s*(\d+))?", re.IGNORECASE)
_FRONT = re.compile(r"^\s*(\d+)/(\d+)\s")
_KERAS = re.compile(rf"^\s*{_N}/{_N} (?:\[[=>.]{{10,}}\]|[━─╸╺ ]*━[━─╸╺ ]*)(?P<rest>.*)")
_KERAS_END = re.compile(rf"^\s*{_N}/{_N} - \d+s - (?P<rest>.*)")
_HEADER = re.compile(
    r"(?:^|[\s\]|:>*=-])epochs?\s*[:#=]?\s*[\[(]?\s*(\d+)\s*(?:/|\bof\b)\s*(\d+)\b(?P<rest>.*)", re.IGNORECASE
)
_MMDET = re.compile(rf"\bEpoch\(train\)\s*\[{_N}\]\s*\[\s*{_N}/{_N}\](?P<rest>.*)")
_MMDET_ITERS = re.compile(rf"\bIter\(train\)\s*\[\s*{_N}/{_N}\](?P<rest>.*)")
_IMAGENET = re.compile(rf"\bEpoch:?\s*\[{_N}(?:/{_N})?\]\s*\[\s*{_N}\s*/\s*{_N}\s*\](?P<rest>.*)", re.IGNORECASE)
_SWIN = re.compile(rf"\bTrain:?\s*\[{_N}/{_N}\]\s*\[\s*{_N}/{_N}\](?P<rest>.*)", re.IGNORECASE)
_MNIST = re.compile(rf"\bTrain(?:ing)? Epoch:?\s*{_N}\s*\[\s*{_N}/{_N}\s*\(\s*\d+(?:\.\d+)?%\)\](?P<rest>.*)", re.I)
_TIMM = re.compile(rf"\bTrain:\s*{_N}\s*\[\s*{_N}/{_N}\s*\(\s*\d+%\)\](?P<rest>.*)")
_FAIRSEQ = re.compile(rf"\bepoch {_N}(?: \|)?:\s*{_N} / {_N} (?P<rest>.*)")
_LANGUAGE = re.compile(rf"\|\s*epoch\s+{_N}\s*\|\s*{_N}/\s*{_N} batches\b(?P<rest>.*)")
_GAN = re.compile(rf"^\[{_N}/{_N}\]\s*\[\s*{_N}/{_N}\]\s+(?P<rest>Loss\b.*|Loss_.*)")
_SEARCH = re.compile(rf"^\[CV {_N}/{_N}; {_N}/{_N}\] END\b")
_FAIRSEQ_JSON = re.compile(r'"epoch": (\d+), .*"num_updates": "(\d+)"')
_D2 = re.compile(rf"\beta: (?P<left>(?:\d+ days?, )?[\d:]+)\s+iter: {_N}\s(?P<rest>.*)")
_COUNT = re.compile(
    rf"\b(?P<word>(?:global[ _-]?)?(?:steps?|iter(?:ation)?s?|updates?|batch(?:es)?|it|"
    rf"timesteps?))\b['\"]?\s*[:=#]?\s*['\"]?\s*[\[(]?\s*"
    rf"{_N}\s*(?:/|\bof\b|\bout of\b)\s*{_N}\b(?P<rest>.*)",
    re.IGNORECASE,
)
_DOCKER = re.compile(r"\s*:\s*[A-Z]{3,}\b")
_BRACKETS = re.compile(rf"(?:^|[\s\]:|-])\[\s*{_N}\s*/\s*{_N}\s*\](?P<rest>.*)")
_PERCENT = re.compile(rf"\b(?:training|progress|trained)\b\s*[:=]?\s*\(?{_REAL}\s?%(?P<rest>.*)", re.IGNORECASE)
_DONE = re.compile(rf"^\W*(?:\w+\W+){{0,3}}?{_REAL}\s?% (?:done|completed?|finished)\b(?P<rest>.*)", re.IGNORECASE)
_LONE = re.compile(
    r"(?<![\w.])(?P<word>(?:global[_ -]?|train(?:ing)?[_ -]?)?(?:steps?|iter(?:ation)?s?|it|updates?)|"
    r"(?:time/)?(?:total_|num_)?timesteps?)\b['\"]?\s*[:=#|]?\s*"
    r"(\d[\d,]*)\b(?!\s*/|\.\d|%|:\d|\s*of\b)",
    re.IGNORECASE,
)
_TOTAL = re.compile(
    r"(?<![\w.])(?:max|total|num)(?:[_ ](?:train(?:ing)?[_ ])?(?:steps|iters?|iterations|timesteps))?['\"]?\s*[:=]?\s*"
    r"(\d[\d,]*)\b(?!\.\d|\s*[kKMGT]?i?B\b|%)",
    re.IGNORECASE,
)
_EPOCH_JSON = re.compile(
    r'"epoch": (\d+)\b(?!\.).*"(?:num_|max_|total_|n_)(?:train_)?epochs?": (\d+)\b(?!\.)|'
    r'"(?:num_|max_|total_|n_)(?:train_)?epochs?": (\d+)\b(?!\.).*"epoch": (\d+)\b(?!\.)'
)
_EPOCH_ALONE = re.compile(
    r"(?:^|[\s\]|:>*=-])epochs?\s*[:=#]?\s*\[?\s*(\d+)\b(?!\s*/|\.\d|%|\s*of\b)(?P<rest>.*)", re.IGNORECASE
)
_BEST = re.compile(r"\bbest\b", re.IGNORECASE)
_SOURCE = re.compile(r"[\w./-]+\.py:\d+|\b[A-Za-z_][\w.]*:[A-Za-z_<][\w<>.]*:\d+\b")
"""Where a line comes from, as loggers write it."""
_DICT = re.compile(r"'epoch': '?(\d+(?:\.\d+)?)\b")
_LOSS = re.compile(
    r"(?<![\w/.])(?:train(?:ing)?[_/ ]|total_|lm |nll_)?loss(?: =)?['\"]?\s*[:=]?\s*['\"]?"
    r"(-?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)\b",
    re.IGNORECASE,
)
_NOT_TRAINED = re.compile(r"(?:val\w*|eval\w*|test\w*)[ _/]*$", re.IGNORECASE)
_STEP_TIME = re.compile(r"\s(?:time|(?:avg_)?batch_cost): (\d+(?:\.\d+)?)")
_LEFT = re.compile(r"\beta:? ((?:\d+ days?, )?\d+(?::\d\d){1,2})\b", re.IGNORECASE)
_HINT = re.compile(
    r"(?:^|[\s\"'({,.|])[-+]{0,2}(?P<word>(?:max|num|total|n|scheduled|num[_ -]train|train)?[_ -]?(?:epochs?|"
    r"iters?|iterations|timesteps|steps|training[_-]steps|optimization steps|train[_-]steps|train[_-]iters|"
    r"update))['\"]?\s*(?P<sign>=|:|\s)\s*['\"]?"
    r"(\d{1,3}(?:,\d{3})+|\d+)\b(?!\s*/\s*\d|\.\d|%)",
    re.IGNORECASE,
)
_ALL_EPOCHS = re.compile(r"^(?:(?:max|num|total|n|scheduled|numtrain|train)?epochs|maxepoch)$")
_COMMANDED = ("steps", "iters", "iterations", "timesteps")
"""Settings that say how many there are in a command; in a log they may tell how many are done."""
_ALL_STEPS = re.compile(
    r"^(?:(?:max|total|train|numtrain|maxtrain)(?:(?:training)?steps|iters|iter|iterations|update|timesteps)|"
    r"totaloptimizationsteps|numsteps|(?:num)?trainingsteps|num(?:iters|iterations))$"
)


def plain(text: str) -> str:
    """A text without the codes that move cursors and change colours."""
    return _ANSI.sub("", text) if "\x1b" in text else text


def number_of(text: str) -> float:
    """A count as people and bars write it: 3,750 or 1.25k; NaN if it is too high."""
    scale = _SCALE.get(text[-1:], 1.0)
    try:
        value = float(text.rstrip("kMGT").replace(",", "")) * scale
    except ValueError:
        return math.nan
    return value if value <= MOST else math.nan


def mentions(line: str) -> list[Mention]:
    """What a line says about progress, if anything."""
    line = line[:MOST_LINE]
    if not _PERHAPS.search(line):
        return []
    line = _SOURCE.sub("", line) if ".py:" in line or "INFO" in line else line
    found = _bar(line)
    for form in () if found is not None else _FORMS:
        found = form(line)
        if found is not None:
            break
    return [found] if found is not None and _makes_sense(found) else []


def hints(text: str, *, command: bool = False) -> list[Hint]:
    """The settings in a line, or in a command, that say how much there is to do."""
    found = []
    for match in _HINT.finditer(text):
        if match["sign"].isspace() and not command:
            continue
        word = re.sub(r"[_ -]", "", match["word"].lower())
        unit = (
            "epochs"
            if _ALL_EPOCHS.match(word)
            else "steps"
            if _ALL_STEPS.match(word) or (command and word in _COMMANDED)
            else ""
        )
        total = number_of(match[3])
        if unit and total >= 1:
            found.append(Hint(word, unit, total))
    return found


def loss_in(text: str) -> float:
    """The loss of the training, if a text tells one."""
    for match in _LOSS.finditer(text):
        if not _NOT_TRAINED.search(text[: match.start()]):
            return float(match[1])
    return math.nan


def is_whole(rest: str) -> bool:
    """Whether what follows the last end of a line is already all of it: a bar, which is ended by the next one."""
    return "%" in rest and "<" in rest and rest.rstrip().endswith("]")


def _makes_sense(one: Mention) -> bool:
    """Whether the numbers of a line can be progress."""
    if not math.isnan(one.total) and not 0 <= one.done <= one.total:
        return False
    if math.isnan(one.done) and math.isnan(one.epoch):
        return False
    return math.isnan(one.epochs) or one.epoch <= one.epochs


def _seconds(text: str) -> float:
    """A time like 1:02:03 or "2 days, 7:32:05"."""
    days, _, clock = text.rpartition(", ")
    parts = [float(part or 0) for part in clock.split(":")]
    seconds = sum(part * scale for part, scale in zip(reversed(parts), (1.0, 60.0, 3600.0), strict=False))
    return seconds + 86400.0 * float(days.split()[0] if days else 0)


def _is_other(before: str) -> bool:
    """Whether the words just before a count say that it counts something else than training."""
    return _OTHERS.search(before[-_NEAR:]) is not None


def _named(label: str) -> str:
    """What stands before a count, without its numbers and without what changes."""
    return re.sub(r"[\d.]+", "#", label).strip(" :|-\t")[-80:]


def _bar(line: str) -> Mention | None:
    """A bar of tqdm, as Hugging Face, Lightning, fairseq and YOLO write it, too, of rich, or of fastai."""
    if "━" in line or "•" in line:
        return _rich(line)
    if "<" not in line or "%" not in line:
        return None
    # Of several bars in a line, the last one counts.
    before = line[: line.rfind("%|")] if "%|" in line else ""
    match = _TQDM.match(line[before.rfind("]") + 1 :] if "%|" in before else line) or _FASTAI.match(line)
    if match is None or _BYTES.search(match["rest"]):
        return None
    return _of_bar("tqdm", match["label"], number_of(match["n"]), number_of(match["t"]), match["rest"])


def _rich(line: str) -> Mention | None:
    """A bar of rich, as Lightning and YOLO write it, too."""
    match = _RICH.match(line)
    if match is None or not (match["n"] or match["percent"]) or _BYTES.search(match["rest"]):
        return None
    if match["n"] is None:
        return _of_bar("rich", match["label"], float(match["percent"]), 100.0, match["rest"])
    told = _of_bar("rich", match["label"], number_of(match["n"]), number_of(match["t"]), match["rest"])
    if "•" in match["rest"] and not math.isnan(told.epoch) and not told.over:
        # It counts epochs from 0 and names the last one.
        return told._replace(form="Lightning", epochs=told.epochs + 1.0, base=0.0)
    return told


def _of_bar(form: str, label: str, done: float, total: float, rest: str) -> Mention:
    """What a bar says, by what stands before and after it."""
    epoch, front = _EPOCH.search(label), _FRONT.search(label)
    about = Mention(form, done, total, label=_named(label), loss=loss_in(f"{label} {rest}"))
    if _OTHERS.search(label) and not re.match(r"\W*train", label, re.IGNORECASE):
        return about._replace(kind=OTHER)
    if epoch is not None:
        epochs = number_of(epoch[2]) if epoch[2] else math.nan
        lightning = epoch[2] is None and re.match(r"^Epoch \d+: *$", label) is not None
        fairseq = len(epoch[1]) == 3 and epoch[1].startswith("0")
        base = 0.0 if lightning else 1.0 if fairseq else math.nan
        form = "Lightning" if lightning else "fairseq" if fairseq else form
        return about._replace(form=form, epoch=number_of(epoch[1]), epochs=epochs, base=base)
    if front is not None:
        return about._replace(form="YOLO", epoch=number_of(front[1]), epochs=number_of(front[2]), base=1.0)
    if re.search(r"\bepochs?\b", label, re.IGNORECASE):
        # The outer bar: it counts epochs.
        return Mention(form, epoch=done, epochs=total, over=True, base=1.0, loss=about.loss)
    said = _TRAINS.search(label) is not None or not math.isnan(about.loss)
    return about._replace(kind=TRAINING if said else UNKNOWN if about.label.strip("#: ") else BAR)


def _keras(line: str) -> Mention | None:
    match = _KERAS.match(line) or _KERAS_END.match(line)
    if match is None:
        return None
    loss = loss_in(match["rest"])
    kind = BAR if math.isnan(loss) else TRAINING
    return Mention("Keras", number_of(match[1]), number_of(match[2]), label="keras", kind=kind, loss=loss)


def _mmdet(line: str) -> Mention | None:
    match = _MMDET.search(line)
    if match is not None:
        epoch, done, total = map(number_of, match.groups()[:3])
        return _timed(Mention("MMEngine", done, total, epoch, base=1.0, loss=loss_in(match["rest"])), match["rest"])
    match = _MMDET_ITERS.search(line)
    if match is not None:
        return Mention("MMEngine", number_of(match[1]), number_of(match[2]), loss=loss_in(match["rest"]))
    return None


def _timed(one: Mention, rest: str) -> Mention:
    """The same with the time that is left, and that of a step, as the line tells them."""
    left, step = _LEFT.search(rest), _STEP_TIME.search(rest)
    left_s = _seconds(left[1]) if left else math.nan
    return one._replace(left_s=left_s, step_s=float(step[1]) if step else math.nan)


def _detectron(line: str) -> Mention | None:
    """Detectron2 does not say how many iterations there are, but how much time is left."""
    match = _D2.search(line)
    if match is None:
        return None
    step = _STEP_TIME.search(match["rest"])
    left_s, loss = _seconds(match["left"]), loss_in(match["rest"])
    done = number_of(match[2]) + 1
    return Mention("Detectron2", done, left_s=left_s, step_s=float(step[1]) if step else math.nan, loss=loss)


def _nested(line: str) -> Mention | None:
    """Lines that tell an epoch and how far it is."""
    for form, pattern, base in (
        ("timm", _TIMM, 0.0),
        ("MNIST example", _MNIST, 1.0),
        ("language model", _LANGUAGE, 1.0),
        ("fairseq", _FAIRSEQ, 1.0),
    ):
        match = pattern.search(line)
        if match is not None:
            epoch, done, total = map(number_of, match.groups()[:3])
            return Mention(form, done, total, epoch, base=base, loss=loss_in(match["rest"]))
    for form, pattern in (("ImageNet example", _IMAGENET), ("Swin", _SWIN), ("DCGAN", _GAN)):
        match = pattern.search(line)
        if match is not None:
            epoch, epochs, done, total = (math.nan if one is None else number_of(one) for one in match.groups()[:4])
            # The last number of an epoch is not in the line, so that epochs may count from 0 up to all but one.
            base = 0.0 if math.isnan(epochs) or form != "ImageNet example" else math.nan
            told = Mention(form, done, total, epoch, epochs, base=base, loss=loss_in(match["rest"]))
            return _timed(told, match["rest"])
    return None


def _updates(line: str) -> Mention | None:
    """Fairseq's logs in JSON. How many updates there are is a setting."""
    match = _FAIRSEQ_JSON.search(line) if '"num_updates"' in line and "valid" not in line else None
    return None if match is None else Mention("fairseq", number_of(match[2]), loss=loss_in(line))


def _trainer(line: str) -> Mention | None:
    match = _DICT.search(line)
    if match is None or "'loss': " not in line or not line.lstrip().startswith("{"):
        return None
    return Mention(TRAINER, epoch=float(match[1]), over=True, base=1.0, loss=loss_in(line))


def _counted(line: str) -> Mention | None:
    """Lines with a word that says what is counted: step, iteration, update or batch."""
    match = _COUNT.search(line)
    if match is None:
        return None
    before, done, total = line[: match.start()], number_of(match[2]), number_of(match[3])
    if _is_other(before):
        return Mention("steps", done, total, label=_named(before), kind=OTHER)
    told = bool(_METRIC.search(line))
    if not told and (total < FEW or _DOCKER.match(match["rest"])):
        return None
    form, word = "Megatron" if match["rest"].lstrip().startswith("|") else "steps", match["word"].lower()
    about = Mention(form, done, total, label=word, loss=loss_in(line), whole=word.startswith("global"))
    epoch = _EPOCH.search(before) or _EPOCH.search(match["rest"])
    if epoch is None or form == "Megatron" or about.whole:
        return about._replace(kind=TRAINING if told else BAR)
    epochs = number_of(epoch[2]) if epoch[2] else math.nan
    return _timed(about._replace(epoch=number_of(epoch[1]), epochs=epochs), match["rest"])


def _lone(line: str) -> Mention | None:
    """A count of steps next to a metric, with its total elsewhere: in the line, in a setting, or by the time left."""
    match = _LONE.search(line)
    if match is None or _is_other(line[: match.start()]):
        return None
    table = line.lstrip().startswith("|") and "timesteps" in match["word"]
    if not table and not _METRIC.search(line):
        return None
    total, epoch = _TOTAL.search(line, 0 if line.lstrip().startswith("{") else match.end()), _EPOCH.search(line)
    about = Mention("steps", number_of(match[2]), label=match["word"].lower(), loss=loss_in(line))
    if total is not None and total.start(1) != match.start(2):
        about = about._replace(total=number_of(total[1]), whole=True)
    elif epoch is not None and epoch[2] is not None:
        about = about._replace(epoch=number_of(epoch[1]), epochs=number_of(epoch[2]))
    return _timed(about, line)


def _json_epoch(line: str) -> Mention | None:
    """A line of JSON about an epoch of several."""
    match = _EPOCH_JSON.search(line) if '"epoch"' in line else None
    if match is None:
        return None
    epoch, epochs = number_of(match[1] or match[4]), number_of(match[2] or match[3])
    return Mention("epochs", epoch=epoch, epochs=epochs, over=bool(_RESULT.search(line)), loss=loss_in(line))


def _headed(line: str) -> Mention | None:
    """A line about an epoch of several. With a result it was written at the end of the epoch."""
    match = _HEADER.search(line)
    if match is None or _is_other(line[: match.start()]):
        return None
    rest = match["rest"]
    epoch, epochs = number_of(match[1]), number_of(match[2])
    inner = _BRACKETS.search(rest)
    if inner is not None and _METRIC.search(rest):
        done, total = number_of(inner[1]), number_of(inner[2])
        return Mention("epochs", done, total, epoch, epochs, loss=loss_in(rest))
    return Mention("epochs", epoch=epoch, epochs=epochs, over=bool(_RESULT.search(rest)), loss=loss_in(rest))


def _bracketed(line: str) -> Mention | None:
    """[120/5000] counts if the line tells a metric of a training as well."""
    match = _BRACKETS.search(line)
    if match is None or not _METRIC.search(line) or _is_other(line[: match.start()]):
        return None
    about = Mention("[n/m]", number_of(match[1]), number_of(match[2]), label="[]", loss=loss_in(line))
    epoch = _EPOCH.search(line[: match.start()])
    if epoch is None:
        return about
    return about._replace(epoch=number_of(epoch[1]), epochs=number_of(epoch[2]) if epoch[2] else math.nan)


def _search(line: str) -> Mention | None:
    """Scikit-learn's searches number the folds and the candidates of the fits that have ended."""
    match = _SEARCH.search(line)
    if match is None:
        return None
    fold, folds, candidate, candidates = map(number_of, match.groups())
    return Mention("scikit-learn", (candidate - 1.0) * folds + fold, folds * candidates, label="CV", whole=True)


def _epoch_alone(line: str) -> Mention | None:
    """A result of an epoch. How many there are is said elsewhere, if at all."""
    match = _EPOCH_ALONE.search(line)
    if match is None or not _RESULT.search(match["rest"]):
        return None
    before = line[: match.start(1)]
    if _is_other(before) or _BEST.search(before):
        return None
    return Mention("epochs", epoch=number_of(match[1]), over=True, loss=loss_in(match["rest"]))


def _percent(line: str) -> Mention | None:
    match, kind = _PERCENT.search(line), BAR
    if match is None:
        match, kind = _DONE.search(line), UNKNOWN
    if match is None or _is_other(line[: match.start(1)]) or _BYTES.search(match["rest"]):
        return None
    return Mention("percent", float(match[1]), 100.0, label="%", kind=kind, loss=loss_in(line))


_FORMS = (
    *(_keras, _mmdet, _detectron, _nested, _updates, _trainer),
    *(_search, _counted, _lone, _json_epoch, _headed, _bracketed, _percent, _epoch_alone),
)
