"""Decisions are the same to the bit everywhere: the arithmetic for it, and that nothing else is used."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from fairway.core import portable
from fairway.core.arrays import Floats

SOURCE = Path(__file__).resolve().parents[2] / "src" / "fairway"
ROOMS = ("core", "models", "placement", "policies", "published", "runtime", "simulator", "solvers", "traces")
"""Whatever leads to a decision, a placement or a simulated event is in one of these."""
EXEMPT: dict[str, str] = {}
"""Modules that may use what is forbidden, and why."""

MODULES = {"np", "numpy", "math"}
FORBIDDEN = {
    *("dot", "matmul", "inner", "vdot", "tensordot", "einsum", "linalg", "fft", "convolve", "correlate"),
    *("cov", "corrcoef", "polyfit", "polyval", "interp", "argpartition", "hypot", "dist", "sumprod", "cbrt"),
    *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "logaddexp", "logaddexp2", "pow", "power"),
    *("float_power", "sin", "cos", "tan", "sinh", "cosh", "tanh", "asin", "acos", "atan", "atan2", "arcsin"),
    *("arccos", "arctan", "arctan2", "arcsinh", "arccosh", "arctanh", "asinh", "acosh", "atanh", "gamma", "lgamma"),
    *("erf", "erfc", "sinc", "i0"),
}
"""BLAS and LAPACK, sums of products that may be fused, and functions whose last digit IEEE 754 leaves open."""
METHODS = {"dot", "argpartition", "uniform", "normal", "lognormal", "multivariate_normal", "gauss", "expovariate"}
"""The same as methods; NumPy's draws from these distributions multiply and add in one step where the CPU can."""


def _numbers(seed: int, low: float, high: float, count: int = 2000) -> Floats:
    return low + (high - low) * np.random.default_rng(seed).random(count)


def _within_ulps(found: float, right: float, ulps: float) -> bool:
    return abs(found - right) <= ulps * math.ulp(right)


def test_exp_and_log_are_right_to_two_units_in_the_last_place() -> None:
    for x in [*_numbers(0, -700.0, 700.0).tolist(), *_numbers(1, -1.0, 1.0).tolist(), 0.0, 709.7, -708.0]:
        assert _within_ulps(portable.exp(x), math.exp(x), 2)
    for x in [*_numbers(2, 0.0, 3.0).tolist(), *_numbers(3, 1.0, 1e9).tolist(), 1.0, 5e-324, 1e-300, 1e300]:
        assert _within_ulps(portable.log(x), math.log(x), 2)
        assert _within_ulps(portable.log2(x), math.log2(x), 3)


def test_exp_and_log_know_their_ends() -> None:
    assert [portable.exp(x) for x in (-math.inf, -800.0, 800.0, math.inf)] == [0.0, 0.0, math.inf, math.inf]
    assert [portable.log(x) for x in (0.0, 1.0, math.inf)] == [-math.inf, 0.0, math.inf]
    assert math.isnan(portable.log(-1.0))
    assert math.isnan(portable.exp(math.nan))
    ends = np.array([0.0, 1.0, math.inf, -1.0, math.nan])
    assert portable.log(ends)[:3].tolist() == [-math.inf, 0.0, math.inf]
    assert np.isnan(portable.log(ends)[3:]).all()
    assert portable.exp(np.array([-800.0, 0.0, 800.0])).tolist() == [0.0, 1.0, math.inf]


def test_powers_of_two_have_whole_logarithms() -> None:
    assert [portable.log2(2.0**k) for k in range(-60, 60)] == list(range(-60, 60))
    assert [portable.log(2.0**k) for k in (1, -1, 10)] == [portable.LN2, -portable.LN2, 10 * portable.LN2]


@pytest.mark.parametrize(
    ("function", "low", "high"),
    [
        (portable.exp, -740.0, 709.0),
        (portable.log, 0.0, 50.0),
        (portable.log2, 0.0, 9.0),
        (portable.rounded, -1e3, 1e3),
    ],
)
def test_arrays_and_single_numbers_agree_to_the_bit(
    function: Callable[[float | Floats], float | Floats], low: float, high: float
) -> None:
    numbers = _numbers(4, low, high)
    assert np.asarray(function(numbers)).tolist() == [function(x) for x in numbers.tolist()]


@pytest.mark.parametrize("exponent", [0.0, 1.0, 3.0, 64.0, 100.0, 0.5, 0.9, -0.25])
def test_powers_are_right_and_the_same_in_all_forms(exponent: float) -> None:
    bases = _numbers(5, 0.01, 20.0)
    single = [portable.power(base, exponent) for base in bases.tolist()]
    assert single == pytest.approx((bases**exponent).tolist(), rel=1e-13)
    assert portable.raised(bases, exponent).tolist() == single


def test_one_to_any_power_is_one() -> None:
    assert [portable.power(1.0, e) for e in (0.9, -0.3, 77.7)] == [1.0, 1.0, 1.0]


def test_small_whole_powers_are_products() -> None:
    assert portable.power(-1.1, 3) == -1.1 * -1.1 * -1.1
    assert portable.power(0.0, 2) == 0.0
    assert portable.power(2.0, -2) == 0.25


def test_products_agree_with_numpy() -> None:
    random = np.random.default_rng(6)
    a, b = random.random((7, 5)), random.random((5, 3))
    assert portable.product(a, b) == pytest.approx(a @ b, rel=1e-14)
    stack, other = random.random((4, 7, 5)), random.random((4, 5, 2))
    assert portable.product(stack, other) == pytest.approx(stack @ other, rel=1e-14)
    assert portable.product(np.zeros((2, 0)), np.zeros((0, 3))).tolist() == [[0.0] * 3] * 2
    assert portable.dot(a[0], a[1]) == pytest.approx(float(a[0] @ a[1]), rel=1e-14)
    assert portable.dots(a, a[0]) == pytest.approx(a @ a[0], rel=1e-14)


@pytest.mark.parametrize("size", [1, 2, 3, 8, 20])
def test_systems_are_solved_as_by_numpy(size: int) -> None:
    random = np.random.default_rng(size)
    matrices, right = random.normal(size=(6, size, size)), random.normal(size=(6, size, 2))
    expected = np.linalg.solve(matrices, right)
    assert portable.solve_stack(matrices, right) == pytest.approx(expected, rel=1e-9, abs=1e-12)
    for matrix, column, solution in zip(matrices, right[:, :, 0], expected[:, :, 0], strict=True):
        assert portable.solve(matrix, column) == pytest.approx(solution, rel=1e-9, abs=1e-12)


def test_rows_are_swapped_where_a_pivot_is_zero() -> None:
    matrix, right = np.array([[0.0, 2.0], [4.0, 1.0]]), np.array([6.0, 7.0])
    assert portable.solve(matrix, right).tolist() == [1.0, 3.0]
    assert portable.solve_stack(matrix[None], right[None, :, None]).ravel().tolist() == [1.0, 3.0]


def test_a_singular_system_has_no_number_for_an_answer() -> None:
    matrix = np.array([[1.0, 2.0], [2.0, 4.0]])
    assert np.isnan(portable.solve(matrix, np.ones(2))).all()
    assert not np.isfinite(portable.solve_stack(matrix[None], np.ones((1, 2, 1)))).all()


def test_equals_keep_their_order() -> None:
    values = np.tile([2.0, 1.0, 2.0, 1.0, 0.0], 100)
    expected = sorted(range(len(values)), key=lambda at: values[at])
    assert portable.order(values).tolist() == expected


def test_what_is_equal_but_for_rounding_ties() -> None:
    tenth = [0.1 + 0.2, 0.3, (0.1 * 3) / 1.0, 1.0 - 0.7]
    assert len(set(tenth)) > 1
    assert len({portable.rounded(x) for x in tenth}) == 1
    assert portable.rounded(1.0 + 1e-9) > portable.rounded(1.0) == 1.0
    assert [portable.rounded(x) for x in (0.0, math.inf, -math.inf, -2.5)] == [0.0, math.inf, -math.inf, -2.5]


def test_points_are_joined_by_lines_as_by_numpy() -> None:
    xs, ys = np.array([1.0, 2.0, 4.0, 8.0]), np.array([3.0, -1.0, 0.5, 0.5])
    at = np.array([0.0, 1.0, 1.7, 2.0, 3.3, 8.0, 9.0])
    single = [portable.interpolate(x, xs, ys) for x in at.tolist()]
    assert single == pytest.approx(np.interp(at, xs, ys).tolist(), rel=1e-15)
    assert portable.interpolates(at, xs, ys).tolist() == single
    assert portable.interpolates(at[:2], xs[:1], ys[:1]).tolist() == [3.0, 3.0]


def _modules() -> list[Path]:
    return sorted(path for room in ROOMS for path in (SOURCE / room).rglob("*.py"))


def _name(path: Path) -> str:
    return str(path.relative_to(SOURCE))


def _breaches(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Lines and what is wrong there."""
    own = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp | ast.AugAssign):
            if isinstance(node.op, ast.MatMult):
                yield node.lineno, "@"
            if isinstance(node.op, ast.Pow) and not _is_whole_power(node):
                yield node.lineno, "**"
        elif isinstance(node, ast.Attribute) and _is_forbidden(node, own):
            yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute) and node.func.attr == "argsort" and not _is_stable(node):
                yield node.lineno, "argsort without kind='stable'"
            if isinstance(node.func, ast.Name) and node.func.id == "pow":
                yield node.lineno, "pow"
        elif isinstance(node, ast.ImportFrom) and node.module in MODULES:
            for name in {alias.name for alias in node.names} & FORBIDDEN:
                yield node.lineno, f"from {node.module} import {name}"


def _is_whole_power(node: ast.BinOp | ast.AugAssign) -> bool:
    """Whether a power is one of whole numbers, which Python works out exactly."""
    return isinstance(node, ast.BinOp) and isinstance(node.left, ast.Constant) and isinstance(node.left.value, int)


def _is_forbidden(node: ast.Attribute, own: set[str]) -> bool:
    """Whether an attribute is a function or a method to avoid; not if the module has a method of that name itself."""
    owner = node.value.id if isinstance(node.value, ast.Name) else ""
    return node.attr in FORBIDDEN if owner in MODULES else node.attr in METHODS - own and owner != "portable"


def _is_stable(call: ast.Call) -> bool:
    kinds = [key.value for key in call.keywords if key.arg == "kind"]
    return any(isinstance(kind, ast.Constant) and kind.value == "stable" for kind in kinds)


@pytest.mark.parametrize("path", _modules(), ids=_name)
def test_whatever_decides_is_made_of_exact_operations(path: Path) -> None:
    found = sorted(_breaches(ast.parse(path.read_text())))
    assert bool(found) == (_name(path) in EXEMPT), f"{_name(path)}: {found}; see fairway.core.portable"


@pytest.mark.parametrize(
    "code",
    [
        *("a @ b", "a @= b", "x**2", "2.0**k", "x **= 2", "np.exp(x)", "math.log(x)", "np.linalg.norm(x)", "x.dot(y)"),
        *("np.argsort(x)", "x.argsort()", "np.argsort(x, kind='quicksort')", "np.interp(x, y, z)", "pow(x, y)"),
        *("from math import exp", "np.einsum('i,i', x, x)", "rng.uniform(0, 1)", "math.hypot(x, y)"),
    ],
)
def test_the_law_sees_what_it_forbids(code: str) -> None:
    assert list(_breaches(ast.parse(code)))


@pytest.mark.parametrize(
    "code",
    [
        *("2**53", "1024**3", "2 ** (tries - 1)", "math.sqrt(x)", "np.argsort(x, kind='stable')", "f(**a)"),
        *("x.argsort(axis=1, kind='stable')", "portable.exp(x)", "portable.dot(x, y)", "from math import sqrt"),
    ],
)
def test_the_law_allows_what_is_exact(code: str) -> None:
    assert not list(_breaches(ast.parse(code)))
