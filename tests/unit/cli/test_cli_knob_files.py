"""Files that a policy's knobs are read from: never overwritten, and named when something is wrong with them."""

from __future__ import annotations

from pathlib import Path

from cli_samples import JOBS, Shell


def test_a_file_of_samples_is_not_overwritten(shell: Shell) -> None:
    trace, samples = shell.write("jobs.jsonl", JOBS), shell.write("samples.txt", "100\n200\n")
    policy = f"tiresias:gittins=exact,service=@{samples}"
    for words in (("simulate", "--json"), ("compare", "--csv")):
        call = shell(words[0], trace, "--cluster", "v100:2x4", "--policy", policy, words[1], samples)
        assert call.code == 2
        assert "the same file is an input" in call.err
    assert Path(samples).read_text() == "100\n200\n"


def test_nothing_is_written_into_a_directory_that_is_an_input(shell: Shell) -> None:
    trace = shell.write("jobs.jsonl", JOBS)
    folder = Path(shell.path("profiles"))
    folder.mkdir()
    out = folder / "out.json"
    words = ("--cluster", "v100:2x4", "--policy", "fifo", "--profile", str(folder), "--json", str(out))
    call = shell("simulate", trace, *words)
    assert call.code == 2
    assert "inside a directory that is an input" in call.err
    assert not out.exists()


def test_what_is_wrong_with_a_file_of_samples_names_the_file(shell: Shell) -> None:
    trace, samples = shell.write("jobs.jsonl", JOBS), shell.write("samples.txt", "100\ntwo\n")
    call = shell("simulate", trace, "--cluster", "v100:2x4", "--policy", f"tiresias:service=@{samples}")
    assert call.code == 2
    assert samples in call.err
    assert "'two'" in call.err
    call = shell("simulate", trace, "--cluster", "v100:2x4", "--policy", "tiresias:service=@")
    assert "names no file" in call.err
