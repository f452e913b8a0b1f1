"""What a user submits: the one description of a job, for the command line, scripts, the REST API and the journal.

The REST API and the configuration use the same types of fields and the same check. Pydantic checks the types strictly:
a number in quotes is an error. An error is one line that names each field and what is allowed there.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from fairway.core.errors import InputError
from fairway.core.units import MOST_PRIORITY, MOST_SECONDS

MOST_INT = 2**53
"""JSON numbers beyond this are not exact everywhere."""
MOST_TEXT = 131_072
MOST_WEIGHT = 1e6

NOTHING_ELSE = ConfigDict(extra="forbid")
"""The configuration of classes that allow no unknown fields."""
Whole = Annotated[int, Field(strict=True)]
Text = Annotated[str, Field(strict=True, max_length=MOST_TEXT, pattern=r"^[^\x00]*$")]
Name = Annotated[str, Field(strict=True, max_length=200, pattern=r"^[^\x00-\x1f\x7f/]*$")]
Seconds = Annotated[float, Field(strict=True, ge=0, le=MOST_SECONDS, allow_inf_nan=False)]
Positive = Annotated[float, Field(strict=True, gt=0, le=MOST_SECONDS, allow_inf_nan=False)]
Weight = Annotated[float, Field(strict=True, gt=0, le=MOST_WEIGHT, allow_inf_nan=False)]
Cpus = Annotated[float, Field(strict=True, ge=0, le=65_536, allow_inf_nan=False)]
Priority = Annotated[Whole, Field(ge=-MOST_PRIORITY, le=MOST_PRIORITY)]
Flag = Annotated[bool, Field(strict=True)]

_MOST_PROBLEMS, _MOST_SHOWN = 8, 60
_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")
_RULES = {
    "missing": "is missing",
    "string_pattern_mismatch": "has characters that it may not have",
    "string_too_long": "is longer than {max_length} characters",
    "string_too_short": "is empty",
    "string_unicode": "must be UTF-8",
    "string_type": "must be text",
    "too_long": "has more than {max_length} entries",
    "too_short": "is empty",
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "finite_number": "must be a finite number",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "literal_error": "must be {expected}",
    "list_type": "must be a list",
    "tuple_type": "must be a list",
    "dict_type": "must have named fields",
    "dataclass_type": "must have named fields",
    "model_type": "must have named fields",
    "model_attributes_type": "must have named fields",
    "value_error": "{error}",
}
"""Our message by the kind of a problem. Other kinds keep Pydantic's message."""

Made = TypeVar("Made")
FieldPath = Sequence[str | int]
_adapters: dict[type[Any], TypeAdapter[Any]] = {}
"""Adapters that check classes. Each is made when it is first needed, since that takes 20 ms for a job."""

Preempt = Literal["checkpoint", "suspend", "restart", "never"]
Processes = Literal["one", "per_gpu"]
DependencyKind = Literal["afterok", "afterany", "afternotok"]
DEPENDENCIES: tuple[DependencyKind, ...] = ("afterok", "afterany", "afternotok")

MOST_ARGUMENTS, MOST_ENVIRONMENT, MOST_GPUS, MOST_SHOWN, MOST_DEPENDENCIES = 4096, 1024, 4096, 4096, 1000
MOST_TASKS = 100_000
"""The most tasks of one array. The configuration may allow fewer."""


def _no_share(value: Any) -> Any:
    """Say how a part of a GPU is asked for."""
    if isinstance(value, float) and 0 < value < 1:
        raise ValueError("must be a whole number; gpu_share asks for a part of one GPU")
    return value


Gpus = Annotated[Whole, Field(ge=1, le=MOST_GPUS), BeforeValidator(_no_share)]
Share = Annotated[float, Field(strict=True, ge=0.001, le=1, allow_inf_nan=False)]
GpusOrNone = Annotated[Whole, Field(ge=0, le=MOST_GPUS)]
Variable = Annotated[str, Field(strict=True, max_length=4096, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
JobId = Annotated[str, Field(strict=True, min_length=1, max_length=40)]
Key = Annotated[str, Field(strict=True, min_length=1, max_length=200)]
Count = Annotated[Whole, Field(ge=0, le=1_000_000)]


def _unknown_field(place: FieldPath) -> str:
    return "there is no such field"


def checked(
    kind: type[Made],
    values: Mapping[str, Any],
    names: Mapping[str, str] | None = None,
    unknown: Callable[[FieldPath], str] = _unknown_field,
) -> Made:
    """A dataclass from values that a user gave; `InputError` if one of them is not allowed.

    `names` are the names that users know for fields, such as options. `unknown` makes the message for an unknown field.
    """
    adapter = _adapters.get(kind) or _adapters.setdefault(kind, TypeAdapter(kind))
    try:
        made: Made = adapter.validate_python(values)
    except ValidationError as error:
        raise InputError(
            problems_text(error.errors(), lambda place: _dotted(place, names or {}), unknown=unknown)
        ) from None
    return made


def problems_in(kind: type[Any], values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What is wrong with values that a user gave: the place of each problem, and what is allowed there."""
    adapter = _adapters.get(kind) or _adapters.setdefault(kind, TypeAdapter(kind))
    try:
        adapter.validate_python(values)
    except ValidationError as error:
        known = error.errors()[:_MOST_PROBLEMS]
        return [
            (_dotted(one["loc"], {}), _unknown_field(()) if one["type"] in _UNKNOWN else _rule(one, values=True))
            for one in known
        ]
    return []


def problems_text(
    problems: Iterable[Any],
    name: Callable[[FieldPath], str],
    *,
    values: bool = True,
    unknown: Callable[[FieldPath], str] = _unknown_field,
) -> str:
    """All problems in one line: the name of each field, what is allowed there, and with `values` what was given."""
    lines: dict[str, None] = {}
    for one in problems:
        what = unknown(one["loc"]) if one["type"] in _UNKNOWN else _rule(one, values=values)
        lines[": ".join(part for part in (name(one["loc"]), what) if part)] = None
    more = [f"and {len(lines) - _MOST_PROBLEMS} more"] if len(lines) > _MOST_PROBLEMS else []
    return "; ".join([*lines][:_MOST_PROBLEMS] + more)


def _rule(problem: Any, *, values: bool) -> str:
    about = {key: _number(value) for key, value in problem.get("ctx", {}).items()}
    known = _RULES.get(problem["type"])
    rule = str(problem["msg"]) if known is None else known.format(**about)
    given = problem["input"]
    if not values or problem["type"] in ("value_error", "missing") or not isinstance(given, str | int | float):
        return rule
    return f"{rule}{', not' if rule.startswith('must') else ':'} {_shown(given)}"


def _shown(value: object) -> str:
    text = repr(value) if str(value).isprintable() else ascii(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"


def _number(limit: Any) -> str:
    if isinstance(limit, bool) or not isinstance(limit, int | float):
        return str(limit)
    return f"{limit:,.0f}" if limit == int(limit) else f"{limit:g}"


def _dotted(place: FieldPath, names: Mapping[str, str]) -> str:
    parts = [str(part)[:_MOST_SHOWN] for part in place if part != "[key]"]
    return ".".join([names.get(part, part) for part in parts[:1]] + parts[1:])


def _about(text: str, unit: str | None = None) -> Any:
    """What a field is for, and its unit."""
    return Field(description=text, json_schema_extra=None if unit is None else {"unit": unit})


Command = Annotated[
    tuple[Text, ...], Field(min_length=1, max_length=MOST_ARGUMENTS), _about("the program and its arguments")
]
Retries = Annotated[Whole, Field(ge=0, le=1000), _about("how many times it is tried again after a failure")]
LimitS = Annotated[Positive | None, _about("the longest that it may run", "seconds")]
DeadlineS = Annotated[Seconds | None, _about("when it must be done", "seconds after its submission")]


@dataclass(frozen=True)
class Dependency:
    """Wait for another job: until it has completed (`afterok`), ended (`afterany`), or failed (`afternotok`)."""

    __pydantic_config__: ClassVar[ConfigDict] = NOTHING_ELSE

    kind: DependencyKind
    job: JobId


@dataclass(frozen=True, eq=False, repr=False)
class JobTerms:
    """What the owner of a job asks for. Everything but the command has a default.

    `gpus` is the gang, `gpus_min..gpus_max` the elastic range. A job with a `gpu_share` below 1 has a part of one GPU.
    `preempt` says how its GPUs can be taken away: by "checkpoint" (SIGTERM, it saves and exits with 75), by "suspend"
    in place, by a "restart" from the beginning, or "never". With `executor` the command is the Python that runs it, and
    arguments of the function.

    Values from a user are checked (`checked`, the API). Values that code makes by itself are trusted.
    """

    __pydantic_config__: ClassVar[ConfigDict] = NOTHING_ELSE

    command: Command
    user: Annotated[Name, _about("the owner of the job; only operators may name another user")] = ""
    name: Annotated[Name, _about("a name for the job")] = ""
    queue: Annotated[Name, _about("the queue, one of those in the configuration")] = ""
    cwd: Annotated[
        str, Field(strict=True, max_length=4096, pattern=r"^/[^\x00]*$"), _about("the directory in which it runs")
    ] = "/"
    env: Annotated[dict[Variable, Text], Field(max_length=MOST_ENVIRONMENT), _about("environment variables")] = field(
        default_factory=dict
    )
    gpus: Annotated[Gpus, _about("how many GPUs it needs")] = 1
    gpus_min: Annotated[GpusOrNone, _about("the least GPUs of an elastic range; 0 is `gpus`")] = 0
    gpus_max: Annotated[GpusOrNone, _about("the most GPUs of an elastic range; 0 is `gpus`")] = 0
    gpu_share: Annotated[
        Share, _about("the part of one GPU that it needs, of its memory and time; 1 is whole GPUs")
    ] = 1.0
    gpu_types: Annotated[tuple[Name, ...], Field(max_length=100), _about("only GPUs of these types")] = ()
    memory_bytes: Annotated[
        Whole, Field(ge=0, le=MOST_INT), _about("the memory that it needs on each GPU", "bytes")
    ] = 0
    host_memory_bytes: Annotated[
        Whole, Field(ge=0, le=MOST_INT), _about("the most memory of the machine that it may use; 0 is any", "bytes")
    ] = 0
    cpus: Annotated[Cpus, _about("the most CPUs that it may use; 0 is any number")] = 0.0
    priority: Annotated[Priority, _about("higher is served first; negative is opportunistic")] = 0
    weight: Annotated[Weight, _about("its share relative to other jobs, for policies that share")] = 1.0
    limit_s: LimitS = None
    expected_s: Annotated[Positive | None, _about("how long it will probably run", "seconds")] = None
    deadline_s: DeadlineS = None
    begin_s: Annotated[Seconds | None, _about("the earliest start", "seconds since 1970")] = None
    preempt: Annotated[Preempt, _about("how its GPUs may be taken away")] = "suspend"
    grace_s: Annotated[Seconds, _about("how long it may take to stop when it is asked to", "seconds")] = 60.0
    retries: Retries = 0
    processes: Annotated[
        Processes, _about("start the command once, or once per GPU with ranks as torchrun sets them")
    ] = "one"
    executor: Annotated[
        str,
        Field(strict=True, max_length=500, pattern=r"^([A-Za-z_][\w.]*:[A-Za-z_]\w*)?$"),
        _about("a function package.module:make_job: its job is hosted with others in one process on the GPU"),
    ] = ""
    hold: Annotated[Flag, _about("do not start it until it is released")] = False
    depends: Annotated[tuple[Dependency, ...], Field(max_length=MOST_DEPENDENCIES), _about("jobs to wait for")] = ()
    steps: Annotated[Positive | None, _about("how many steps it takes")] = None
    epochs: Annotated[Positive | None, _about("how many epochs it takes")] = None
    model: Annotated[Name, _about("the model that it trains; jobs of one model are used to estimate each other")] = ""
    batch_size: Annotated[Annotated[Whole, Field(ge=1, le=MOST_INT)] | None, _about("its batch size per GPU")] = None
    slurm_env: Annotated[Flag, _about("also set SLURM_ variables")] = False
    tty: Annotated[Flag, _about("write to a pseudo-terminal, for programs that draw only there")] = False
    array_at_once: Annotated[Count, _about("how many tasks of its array may run at a time; 0 means no limit")] = 0
    client_key: Annotated[Key | None, _about("the same key of the same user gives the same job again")] = None
    shown: Annotated[
        str,
        Field(strict=True, max_length=MOST_SHOWN, pattern=r"^[^\x00]*$"),
        _about("what lists show instead of the command"),
    ] = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "gpus_min", self.gpus_min or self.gpus)
        object.__setattr__(self, "gpus_max", self.gpus_max or self.gpus)
        if not self.command[0]:
            raise InputError("command: there is no program")
        if sum(map(len, self.command)) > MOST_TEXT:
            raise InputError(f"command: is longer than {MOST_TEXT:,} characters")
        if not self.gpus_min <= self.gpus <= self.gpus_max:
            raise InputError(f"gpus: {self.gpus} is not in the elastic range {self.gpus_min}..{self.gpus_max}")
        if self.gpu_share < 1 and self.gpus_max > 1:
            raise InputError(
                f"gpu_share: {self.gpu_share:g} is a part of one GPU, and the job may have {self.gpus_max}"
            )
        if self.executor and (self.gpus_max != 1 or self.processes != "one"):
            raise InputError("executor: a job that is hosted has one GPU and one process")
        if self.elastic and self.preempt != "checkpoint":
            raise InputError("preempt: only jobs that are preempted by checkpoint can change their number of GPUs")

    @property
    def elastic(self) -> bool:
        return self.gpus_min != self.gpus_max

    @property
    def gpus_text(self) -> str:
        """What it asks for, as `--gpus` takes it."""
        return f"{self.gpu_share:g}" if self.gpu_share < 1 else f"{self.gpus}"


@dataclass(frozen=True)
class JobRequest(JobTerms):
    """One job as the scheduler keeps it: what its owner asked for, and what the scheduler adds.

    `array_task` is its number in an array. `account` is the user that its processes run as if the scheduler runs as
    root. It is set after the submitter was identified.
    """

    array_task: Annotated[Annotated[Whole, Field(ge=0)] | None, _about("its number in an array")] = None
    account: Annotated[str, Field(strict=True)] = ""

    def plain(self) -> dict[str, Any]:
        """The request as JSON values, without fields that have their default."""
        known = vars(self)
        made = {name: known[name] for name, default in _defaults() if known[name] != default}
        if self.depends:
            made["depends"] = [asdict(one) for one in self.depends]
        return made

    @classmethod
    def from_plain(cls, values: Mapping[str, Any]) -> Self:
        """Read what `plain` gave, or what a user wrote."""
        return checked(cls, values)

    def task(self, number: int) -> Self:
        """The same request as one task of an array."""
        return replace(self, array_task=number)


@cache
def _defaults() -> tuple[tuple[str, Any], ...]:
    """The fields of a request with their defaults."""
    return tuple((one.name, {} if one.name == "env" else one.default) for one in fields(JobRequest))


@cache
def _descriptions() -> dict[str, str]:
    return {
        name: about.description
        for name, hint in JobTerms.__annotations__.items()
        for about in getattr(hint, "__metadata__", ())
        if isinstance(about, FieldInfo) and about.description
    }


def description(name: str) -> str:
    """What a field of a job is for."""
    return _descriptions()[name]
