import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import closing

import pytest

from deepinsight.dashboard.command import main
from deepinsight.dashboard.errors import ServeError, TokenRequiredError
from deepinsight.dashboard.server import address_of, listen, require_token

RUN = "import sys; from deepinsight.dashboard.command import main; sys.exit(main(sys.argv[1:]))"


@pytest.fixture
def start():
    """Start the command as a process of its own; return it and the line it printed."""
    started = []

    def run(*arguments, **environment):
        process = subprocess.Popen(
            [sys.executable, "-c", RUN, *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
        started.append(process)
        return process, process.stdout.readline()

    yield run
    for process in started:
        process.kill()
        process.communicate()


def address(line):
    return re.search(r"http://\S+", line).group()


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_one_line_names_the_address_and_a_signal_ends_it_cleanly(start, runs_folder, ending):
    process, line = start(runs_folder, "--port", 0)
    assert line.startswith(f"DeepInsight shows {runs_folder} at http://127.0.0.1:")
    with urllib.request.urlopen(address(line), timeout=10) as response:
        assert response.status == 200
        assert response.headers["Server"] == "deepinsight"
    process.send_signal(ending)
    out, err = process.communicate(timeout=10)
    assert (process.returncode, out, err) == (0, "", "")


def test_another_interface_is_served_with_a_token(start, runs_folder):
    process, line = start(runs_folder, "--port", 0, "--host", "0.0.0.0", "--token", "auto")
    url = address(line)
    port, token = re.search(r":(\d+)/\?token=(\S+)", url).groups()
    assert len(token) >= 40
    local = f"http://127.0.0.1:{port}/"
    with pytest.raises(urllib.error.HTTPError, match="401") as refused:
        urllib.request.urlopen(local, timeout=10)
    refused.value.close()
    request = urllib.request.Request(local, headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=10) as response:
        assert response.status == 200
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 0


def test_the_token_may_stand_in_the_environment(start, tmp_path):
    _, line = start(tmp_path / "later", "--port", 0, DEEPINSIGHT_TOKEN="from-the-environment")
    assert address(line).endswith("/?token=from-the-environment")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_an_address_that_others_reach_needs_a_token(runs_folder, capsys, monkeypatch, host):
    monkeypatch.delenv("DEEPINSIGHT_TOKEN", raising=False)
    assert main([str(runs_folder), "--host", host]) == 2
    assert "--token auto" in capsys.readouterr().err
    with pytest.raises(TokenRequiredError, match="needs a token"):
        require_token(host, None)
    require_token(host, "token")


def test_a_port_in_use_is_said(runs_folder, capsys):
    with closing(listen("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main([str(runs_folder), "--port", str(port)]) == 2
    error = capsys.readouterr().err
    assert f"Port {port} on 127.0.0.1 is in use" in error
    assert "--port" in error
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("host", "port"), [("192.0.2.1", 0), ("127.0.0.1", 99999), ("no such host", 0)]
)
def test_an_impossible_address_is_refused(host, port):
    with pytest.raises(ServeError, match=r"--host|--port|Cannot serve"):
        listen(host, port).close()


def test_a_file_is_no_runs_folder(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main([str(tmp_path / "file")]) == 2
    assert "must be a directory" in capsys.readouterr().err


def test_the_address_can_be_opened_as_it_is_printed():
    with closing(listen("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert address_of(listener, None) == f"http://127.0.0.1:{port}/"
        assert address_of(listener, "t") == f"http://127.0.0.1:{port}/?token=t"
