"""What the web page sends and gets, beside what everybody does: links, signing in, the compact list, the forecast."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, Field, model_validator

from fairway.runtime.jobs.request import NOTHING_ELSE, Flag

Secret = Annotated[str, Field(strict=True, min_length=1, max_length=200)]


class LinkIn(BaseModel):
    """What a link is to be: for looking only, and at another loopback address."""

    model_config = NOTHING_ELSE

    read_only: Flag = False
    address: Annotated[
        str | None, Field(strict=True, min_length=1, max_length=100, description="such as 127.0.0.1:8080")
    ] = None


class LinkOut(BaseModel):
    """A link that signs in once, within `expires_s`; `address` is that of the page alone."""

    url: str
    address: str
    expires_s: float


class SignIn(BaseModel):
    """The secret of a link, or a token."""

    model_config = NOTHING_ELSE

    link: Secret | None = None
    token: Secret | None = None

    @model_validator(mode="after")
    def _one(self) -> SignIn:
        if (self.link is None) == (self.token is None):
            raise ValueError("needs a link or a token")
        return self


class ShortJobs(BaseModel):
    """Jobs in short, the newest first, by columns: one list for each field.

    In a column of texts a number is a place in `texts`. In those of `id` and `submitted_s` a number is the difference
    from the last number above it.
    `event` is the id of the last event that is included. `left_out` jobs have ended earlier than those in the list.
    """

    now_s: float
    event: str
    fields: list[str]
    texts: list[str]
    columns: list[list[Any]]
    counts: dict[str, int]
    left_out: int


class ForecastJob(BaseModel):
    """When a job starts and ends, and the intervals in which it does so with the probability `sure`.

    A time without an interval is rough. Of jobs far back in the queue only the start is told.
    """

    start_s: float | None
    start_between_s: tuple[float, float] | None = None
    start_rough: bool = False
    finish_s: float | None = None
    finish_between_s: tuple[float, float] | None = None
    finish_rough: bool = False
    sure: float | None = None
    why: str = ""


class ForecastOut(BaseModel):
    """What is expected of all jobs if nothing comes after `event`.

    `spans` are a GPU, the job that has it, from when to when.
    """

    made_s: float
    event: str
    policy: str
    until_s: float
    cut: str
    note: str
    problem: str
    jobs: dict[str, ForecastJob]
    spans: list[tuple[int, str, float, float]]


class NoForecastYet(BaseModel):
    """The first forecast is being made."""

    made_s: None
