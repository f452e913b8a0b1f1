"""How far a job is, read off its log.

`LogReader` takes a log in pieces, with the time that the job had run by then, and tells the progress of the whole
training once there is evidence for it: a count that has grown several times, towards a total that stays, for a while.
Epochs and the steps in them are put together. A bar that ends and begins again was one epoch of several. If nobody says
of how many, nothing is told, rather than something wrong.
"""

from __future__ import annotations

import math
import re
from statistics import median
from typing import NamedTuple

from fairway.models.count_pace import CountPace
from fairway.models.log_forms import BAR, MOST, OTHER, TRAINER, Hint, Mention, hints, is_whole, mentions, plain

LEAST_S = 5.0
LEAST_VALUES = 3
"""Evidence: so many values that grow, over so many seconds."""
LONGER_S = 30.0
"""Evidence for a bar whose name says nothing."""
MOST_REST = 4096
"""The most bytes that are kept of a line that has no end yet."""
FITS = 0.15
"""Two times are the same if they differ by less than this part."""
GUESSED = 0.03
"""A total that follows from the time that is left changes if it is off by more than this part of the rest."""
MOST_BEHIND = 50
"""After so many values that seem to be of an earlier moment, they count: it has begun again."""
ONWARD = 0.4
"""A count that has at least this part of its pace from one epoch to the next has not begun again in between."""
MOST_INSIDE = 4
"""A result that is told at more moments of one epoch than this is not that of its end."""
MOST_TRACKS = 64
_ENDS = re.compile(r"[\r\n\b]+")
_TRAINERS = ("numtrainepochs", "totaloptimizationsteps")
"""Settings of trainers whose bar counts the steps of all epochs."""
_COMMANDS = re.compile(r"[\n;&|]+")
"""What stands between the commands of a script."""


class LogProgress(NamedTuple):
    """What a log says: `done` of `total` units, `per_s` of them in a second of run time; NaN if that is measured again.

    `form` is the form that was recognised. `unit` is "step", "epoch", "sample" or "percent". `loss` is NaN if none is
    told.
    """

    form: str
    unit: str
    done: float
    total: float
    per_s: float
    loss: float = math.nan

    @property
    def left_s(self) -> float:
        """How long the rest takes at this pace, in seconds."""
        return (self.total - self.done) / self.per_s


class _Track:
    """A count that grows: a bar, or the same line again and again. `at` numbers the lines that were read."""

    def __init__(self, first: Mention, at: int, now_s: float) -> None:
        self.last = first
        self.kind = first.kind
        self.begun_at = self.seen_at = self.moved_at = self.restarted_at = at
        self.seen_s = self.restarted_s = now_s
        self.values = 1
        self.rounds = 0
        self.round_s = math.inf
        self.spent_s = self.grown = 0.0
        self.behind = 0
        self.onward = self.backward = self.along = 0
        self.astray = False
        self.is_guessed = False

    @property
    def over(self) -> bool:
        """Whether it has reached its total."""
        return self.last.done >= self.last.total

    @property
    def through(self) -> bool:
        """Whether it goes on from epoch to epoch: it counts all of the training."""
        along = self.along >= LEAST_VALUES and not self.astray
        return self.last.whole or (self.backward == 0 and (self.onward > 0 or along))

    def compare(self, over: float, epochs: float) -> None:
        """Take note whether the latest value could be one of all epochs together, of which some are over."""
        each = self.last.total / epochs
        slack = 0.02 * self.last.total
        if not over * each - slack <= self.last.done <= (over + 1.0) * each + slack:
            self.astray = True
        elif over >= 1 and self.last.total % epochs == 0:
            self.along += 1

    def take(self, one: Mention, at: int, now_s: float) -> bool:
        """Take the next value in. False if it seems to be of another rank, which is behind."""
        before = self.last
        if self._is_behind(one, now_s) and self.behind < MOST_BEHIND:
            self.behind += 1
            return False
        self.behind = 0
        if one.epoch > before.epoch:
            self._note_next(one, now_s)
        again = one.done < before.done
        if again:
            self.rounds += 1
            self.round_s, self.restarted_s, self.restarted_at = now_s - self.restarted_s, now_s, at
        else:
            self.spent_s += now_s - self.seen_s
            self.grown += one.done - before.done
        if one.done != before.done:
            self.values += 1
            self.moved_at = at
        self.kind, self.seen_s, self.seen_at, self.last = max(self.kind, one.kind), now_s, at, one
        return True

    def _note_next(self, one: Mention, now_s: float) -> None:
        """In the next epoch a count begins again, or it goes on at its pace."""
        more, time_s = one.done - self.last.done, now_s - self.seen_s
        if more <= 0 or self.last.done >= self.last.total:
            self.backward += 1
        elif more * self.spent_s >= ONWARD * self.grown * time_s:
            self.onward += 1

    def _is_behind(self, one: Mention, now_s: float) -> bool:
        """Whether a value is one of an earlier moment."""
        before, total = self.last, one.total
        if one.epoch != before.epoch and not math.isnan(one.epoch):
            return one.epoch < before.epoch
        if one.done < before.done:
            return not (self.over or one.done < 0.5 * before.done)
        young = self.rounds > 0 and now_s - self.restarted_s < 0.2 * self.round_s and total >= 10
        return young and before.done < 0.1 * total and one.done > 0.9 * total and math.isnan(one.epoch)


class _Epochs(NamedTuple):
    """Lines or a bar about epochs: so many were over when it was written, of so many."""

    form: str
    over: float
    epochs: float
    moved_at: int
    told: int = 1
    told_s: float = math.nan


class _Settings:
    """The settings that say how much there is to do. A setting with several values counts as none."""

    def __init__(self) -> None:
        self.words: dict[str, Hint] = {}
        self._spoilt: set[str] = set()

    def note(self, hint: Hint) -> None:
        """Take in one setting."""
        known = self.words.get(hint.word)
        if known is not None and known.total != hint.total:
            self._spoilt.add(hint.word)
        self.words[hint.word] = hint

    def total(self, unit: str) -> float:
        """The total that they agree on; NaN if they name none, or several."""
        totals = {hint.total for hint in self.words.values() if hint.unit == unit and hint.word not in self._spoilt}
        return totals.pop() if len(totals) == 1 else math.nan


def _of_command(command: str) -> _Settings:
    """The settings in a command. Of an option that it repeats the last counts, as parsers of options have it, but the
    commands of a script may each have a value of their own."""
    settings = _Settings()
    for part in _COMMANDS.split(command):
        for hint in {hint.word: hint for hint in hints(part, command=True)}.values():
            settings.note(hint)
    return settings


class LogReader:
    """Reads the log of one attempt. `command` may say how much there is to do.

    What the command says wins over the settings in the log: scripts print their defaults or the file that they read
    before options overrule it.
    """

    def __init__(self, command: str = "") -> None:
        self._rest = b""
        self._tracks: dict[tuple[str, str, float], _Track] = {}
        self._main: _Track | None = None
        self._epochs: _Epochs | None = None
        self._first_epoch = math.inf
        self._commanded = _of_command(command)
        self._logged = _Settings()
        self._guesses: list[float] = []
        self._said_epochs = math.nan
        self._lone = CountPace()
        self._inside = False
        self._loss = math.nan
        self._about: tuple[str, str, float] | None = None
        self._told_of: _Track | None = None
        self._pace = CountPace()
        self._evident = self._dead = False
        self._since_s = -math.inf
        self._begun_s = math.nan
        self._at = 0

    def read(self, piece: bytes, now_s: float, *, gap: bool = False) -> LogProgress | None:
        """Take in the next piece of a log, after the job has run for `now_s` seconds. Returns what is known.

        `gap`: something before the piece was left out.
        """
        if gap:
            cut = re.search(rb"[\r\n]", piece)
            self._rest, piece = b"", piece[cut.end() :] if cut else b""
        text = self._rest + piece
        *lines, rest = _ENDS.split(plain(text.decode(errors="replace")))
        self._rest = text[max(text.rfind(b"\r"), text.rfind(b"\n"), text.rfind(b"\b")) + 1 :][-MOST_REST:]
        for line in [*lines, rest] if is_whole(rest) else lines:
            self._read_line(line, now_s)
        return self._told(now_s)

    def look(self, now_s: float) -> LogProgress | None:
        """What is known, if the job has run for `now_s` seconds and its log has not grown."""
        return self._told(now_s)

    def changed(self, now_s: float) -> None:
        """Something about the place where the job runs is different since now: its pace is measured again."""
        self._since_s = now_s

    # --- lines -------------------------------------------------------------------------------------------------------

    def _read_line(self, line: str, now_s: float) -> None:
        self._at += 1
        for one in mentions(line):
            if not math.isnan(one.loss) and one.kind != OTHER:
                self._loss = one.loss
            if math.isnan(one.done):
                self._note_epoch(one, now_s)
            else:
                self._note_count(one, now_s)
            return
        for hint in hints(line):
            self._logged.note(hint)

    def _hinted(self, unit: str) -> float:
        """The total that the command names, else the one in the log; NaN if neither names exactly one."""
        total = self._commanded.total(unit)
        return self._logged.total(unit) if math.isnan(total) else total

    def _note_epoch(self, one: Mention, now_s: float) -> None:
        if one.form == "epochs" and math.isnan(self._all_epochs(one.epochs)):
            return
        if not one.over or one.epoch == 0:
            self._first_epoch = min(self._first_epoch, one.epoch)
        before = self._epochs
        if before is not None and one.form == TRAINER and before.form != TRAINER:
            return
        over = max(one.epoch - self._base(one) + (one.over and not self._inside), 0.0)
        if before is None:
            self._epochs = _Epochs(one.form, over, one.epochs, self._at, 1, now_s)
            return
        epochs = before.epochs if math.isnan(one.epochs) else one.epochs
        if over != before.over:
            self._epochs = _Epochs(one.form, over, epochs, self._at, 1, now_s)
            return
        told = before.told + (now_s > before.told_s and one.form == "epochs")
        if one.over and not self._inside and told > MOST_INSIDE:
            self._inside, over = True, max(over - 1.0, 0.0)
        self._epochs = _Epochs(one.form, over, epochs, before.moved_at, told, now_s)

    def _base(self, one: Mention) -> float:
        """The number of the first epoch, as a form counts."""
        if not math.isnan(one.base):
            return one.base
        return 0.0 if self._first_epoch == 0 else 1.0

    def _note_count(self, one: Mention, now_s: float) -> None:
        if not math.isnan(one.epoch):
            self._first_epoch = min(self._first_epoch, one.epoch)
        # Of bars without names, those with a loss are the training, and others with the same total are not.
        key = (one.form, one.label or str(one.kind), one.total)
        guessed = math.isnan(one.total)
        if guessed:
            key = (one.form, one.label, 0.0)
            one = one._replace(total=self._guessed(one, now_s), whole=True)
            if math.isnan(one.total) or one.done > one.total:
                if not math.isnan(one.epoch):
                    result = Mention("epochs", epoch=one.epoch, epochs=one.epochs, over=True, base=one.base)
                    self._note_epoch(result, now_s)
                return
        track = self._tracks.get(key)
        if track is None:
            if len(self._tracks) >= MOST_TRACKS:
                oldest = min(self._tracks, key=lambda name: self._tracks[name].seen_s)
                del self._tracks[oldest]
            self._tracks[key] = track = _Track(one, self._at, now_s)
            track.is_guessed = guessed
        elif not track.take(one, self._at, now_s):
            return
        if one.epoch <= one.epochs:
            track.compare(one.epoch - self._base(one), one.epochs)
        if track.kind != OTHER:
            self._choose(track)

    def _guessed(self, one: Mention, now_s: float) -> float:
        """How many steps there are in all: as settings say, or by the time that is left."""
        said = self._hinted("steps")
        if not math.isnan(said) or math.isnan(one.left_s):
            return said
        if one.done < self._lone.last:
            self._lone = CountPace()
        self._lone.note(now_s, one.done)
        per_s = 1.0 / one.step_s if one.step_s > 0 else self._lone.per_s()
        if math.isnan(per_s):
            return per_s
        self._guesses = [*self._guesses[-8:], one.done + one.left_s * per_s]
        guess, known = median(self._guesses), self._main
        before = known.last.total if known is not None and known.last.form == one.form else 0.0
        if one.done <= before and abs(before - guess) <= GUESSED * (guess - one.done):
            # Small differences are no news.
            return before
        return math.ceil(guess) if 0 < guess < MOST else math.nan

    def _choose(self, track: _Track) -> None:
        """Whether a count is now the one that tells the progress."""
        main = self._main
        if main is None or main is track:
            self._main = track
            return
        if (track.kind > main.kind and track.values >= 2) or track.last.total == self._hinted("steps"):
            self._main = track
            return
        if main.last.total == self._hinted("steps") and not main.over:
            return
        silent = main.seen_at <= max(track.begun_at, track.restarted_at)
        if track.kind < main.kind or not silent or self._is_outer(track, main):
            return
        share = 0.25 if main.over else 0.6
        if self._is_outer(main, track) or track.spent_s > share * main.spent_s + LEAST_S:
            self._main = track

    @staticmethod
    def _is_outer(outer: _Track, inner: _Track) -> bool:
        """Whether one bar counts the rounds of another."""
        if outer.begun_at > inner.begun_at or outer.last.total < 2 or (outer.over and not inner.rounds):
            return False
        return math.isnan(outer.last.epoch) and outer.values <= inner.rounds + 2 and inner.values >= 2

    # --- the whole ---------------------------------------------------------------------------------------------------

    def _told(self, now_s: float) -> LogProgress | None:
        found = self._whole()
        if found is None or not 0 <= found[2] <= found[3] <= MOST:
            self._about, self._evident = None, False
            return None
        form, unit, done, total = found
        if self._dead and done > self._pace.last:
            self._about = None
        guessed = self._main is not None and self._main.is_guessed and bool(self._guesses)
        about = (form, unit, 0.0 if guessed else total)
        same = self._told_of is self._main and self._about is not None and self._about[:2] == about[:2]
        if done < 0.98 * self._pace.last or (about != self._about and not same):
            self._pace = CountPace()
            self._evident, self._begun_s = False, now_s
        self._about, self._told_of = about, self._main
        self._pace.since(self._since_s)
        self._pace.note(now_s, done)
        self._dead = self._pace.is_dead(now_s, over=done >= total)
        least_s = LEAST_S if self._main is None or self._main.kind >= BAR else LONGER_S
        self._evident |= len(self._pace) >= LEAST_VALUES and now_s - self._begun_s >= least_s
        self._evident &= not self._dead
        per_s = self._pace.per_s()
        if not self._evident:
            return None
        return LogProgress(form, unit, max(done, self._pace.last), total, per_s, self._loss)

    def _whole(self) -> tuple[str, str, float, float] | None:
        """The form, the unit, how much is done and how much there is, of the whole training."""
        main, epochs = self._main, self._epochs
        if main is None:
            if epochs is None:
                return None
            total = self._all_epochs(epochs.epochs)
            known = total >= max(epochs.over, 2.0 if epochs.form == "epochs" else 0.0)
            return (epochs.form, "epoch", epochs.over, total) if known else None
        last = main.last
        steps = self._hinted("steps")
        if main.is_guessed and main.rounds:
            # It counts the steps of an epoch.
            return None
        if main.through or self._fits(last):
            return last.form, "step", last.done, last.total
        if not math.isnan(steps) and last.total == steps:
            form = TRAINER if last.form == "tqdm" and self._is_trainer() else last.form
            return form, "step", last.done, last.total
        if not math.isnan(last.epoch):
            if last.form == "steps" and self._is_either(last):
                return None
            return self._of_epochs(main, last.epoch - self._base(last), self._total_epochs(last))
        if epochs is not None and epochs.form != TRAINER:
            part = last.done if main.moved_at > epochs.moved_at else 0.0
            return self._of_epochs(main, epochs.over, self._all_epochs(epochs.epochs), part)
        outer = self._outer_of(main)
        if outer is not None:
            part = last.done / last.total if main.moved_at > outer.moved_at else 0.0
            return last.form, "epoch", min(outer.last.done + part, outer.last.total), outer.last.total
        return self._alone(main)

    def _is_either(self, last: Mention) -> bool:
        """Whether a count in the first of several epochs may still be one of that epoch, or one of all."""
        few = last.epochs >= 4 and last.total % last.epochs == 0 and last.done <= last.total / last.epochs
        return few and last.epoch == self._base(last)

    def _fits(self, last: Mention) -> bool:
        """Whether the time that a line tells is that of its count, so that no other epochs follow."""
        if last.form != "steps" or not math.isnan(self._total_epochs(last._replace(left_s=math.nan))):
            return False
        rest_s = (last.total - last.done) * last.step_s
        return abs(last.left_s - rest_s) <= FITS * rest_s + 1.0

    def _alone(self, main: _Track) -> tuple[str, str, float, float] | None:
        """The whole if nothing but one count is known. It may be that of an epoch."""
        last, all_epochs, steps = main.last, self._hinted("epochs"), self._hinted("steps")
        if self._is_trainer() and math.isnan(steps):
            return (TRAINER, "step", last.done, last.total) if main.rounds == 0 else None
        if not math.isnan(steps) and math.isnan(all_epochs):
            # It counts something else than the steps that are known.
            return None
        if all_epochs > 1 and last.form not in ("Megatron", "MMEngine", "Detectron2", "fairseq", "percent"):
            return self._of_epochs(main, float(main.rounds), all_epochs)
        if main.rounds:
            return None
        unit = "percent" if last.form == "percent" else "step"
        return (last.form, unit, last.done, last.total) if last.total > 1 else None

    def _is_trainer(self) -> bool:
        """Whether the log is that of Hugging Face's Trainer, whose bar counts the steps of all epochs."""
        told = self._epochs is not None and self._epochs.form == TRAINER
        return told or any(word in words for words in (self._commanded.words, self._logged.words) for word in _TRAINERS)

    def _outer_of(self, main: _Track) -> _Track | None:
        outer = [one for one in self._tracks.values() if one is not main and one.kind != OTHER]
        found = [one for one in outer if self._is_outer(one, main)]
        return min(found, key=lambda one: one.last.total, default=None)

    @staticmethod
    def _of_epochs(
        main: _Track, over: float, epochs: float, part: float = math.nan
    ) -> tuple[str, str, float, float] | None:
        """The steps of all epochs, of which some are over. `part` of the present one is done; NaN if all of `main`."""
        last = main.last
        if not 0 <= over <= epochs or epochs < 1:
            return None
        done = over * last.total + (last.done if math.isnan(part) else part)
        unit = "sample" if last.form == "MNIST example" else "step"
        return last.form, unit, min(done, epochs * last.total), epochs * last.total

    def _all_epochs(self, told: float) -> float:
        return self._hinted("epochs") if math.isnan(told) else told

    def _total_epochs(self, last: Mention) -> float:
        """How many epochs there are: as the line says, as settings say, or by the time that is left."""
        total = self._all_epochs(last.epochs)
        if math.isnan(total) and self._epochs is not None:
            total = self._epochs.epochs
        if math.isnan(total) and last.left_s >= 0 and last.step_s > 0:
            done = (last.epoch - self._base(last)) * last.total + last.done
            self._guesses = [*self._guesses[-8:], (done + last.left_s / last.step_s) / last.total]
            total = max(float(round(median(self._guesses))), 1.0)
            if last.form != "MMEngine" and total <= last.epoch - self._base(last) + 1.0:
                # Many tell the time that is left of this epoch only.
                return total if total == self._said_epochs else math.nan
            self._said_epochs = total
        if last.epochs > 0 and self._base(last) == 0 and last.epoch == last.epochs:
            # It counts from 0 and names the last one.
            total = last.epochs + 1
        return total
