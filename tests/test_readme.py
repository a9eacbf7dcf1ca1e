"""Every snippet of the README runs, in its order, as a user would type it."""

import os
import re
import shlex
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

import deepinsight as di

README = Path(__file__).parents[1] / "README.md"
BIN = Path(sys.executable).parent


def snippets(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README.read_text(), flags=re.DOTALL)


def run(command: list[str], folder: Path) -> str:
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def first_answer(url: str, server: subprocess.Popen[str], patience_s: float = 60.0) -> bytes:
    deadline = time.monotonic() + patience_s
    while True:
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                body: bytes = answer.read()
                return body
        except OSError:
            assert server.poll() is None, "the dashboard has ended"
            assert time.monotonic() < deadline, "the dashboard does not answer"
            time.sleep(0.2)


@pytest.mark.xdist_group("readme")
@pytest.mark.timeout(400)
def test_every_snippet_runs_in_its_order(tmp_path: Path, free_port: int) -> None:
    for code in snippets("python"):
        run([sys.executable, "-W", "error::DeprecationWarning:__main__", "-c", code], tmp_path)
    assert set(di.open_runs(tmp_path / "runs")) == {"session", "keras", "loop"}
    assert {run.status for run in di.open_runs(tmp_path / "runs").values()} == {"finished"}
    commands = [
        shlex.split(line.removeprefix("$ "))
        for block in snippets("console")
        for line in block.splitlines()
    ]
    assert {command[1] for command in commands} == {"dashboard", "report", "inspect", "train"}
    for _, *arguments in commands:
        command = [str(BIN / "deepinsight"), *arguments]
        if arguments[0] != "dashboard":
            run(command, tmp_path)
            continue
        server = subprocess.Popen(
            [*command, "--port", str(free_port)], cwd=tmp_path, stdout=subprocess.DEVNULL, text=True
        )
        try:
            assert b"DeepInsight" in first_answer(f"http://127.0.0.1:{free_port}/", server)
        finally:
            server.terminate()
            server.wait(timeout=20)
    assert (tmp_path / "report.html").stat().st_size > 1_000_000
    assert di.open_run(tmp_path / "runs" / "async").steps("staleness/global").max() >= 300


def test_make_targets_of_the_readme_exist() -> None:
    makefile = README.with_name("Makefile").read_text()
    for target in re.findall(r"`?make (\w+)`?", README.read_text()):
        assert f"\n{target}:" in makefile


def test_files_that_the_readme_names_exist() -> None:
    for name in re.findall(r"\]\(([^)#:]+)\)", README.read_text()):
        assert (README.parent / name).exists(), name
    assert os.access(README.parent / "sample_runs", os.R_OK)
