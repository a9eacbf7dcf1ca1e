import importlib.util
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from flask.testing import FlaskClient

from deepinsight.dashboard import create_app
from deepinsight.dashboard.server import listen, make_http_server

CHROMIUM, CHROMEDRIVER = "/usr/bin/chromium", "/usr/bin/chromedriver"
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync "
    # No name resolves but this machine's own: a page that needs the network fails.
    "--host-resolver-rules=MAP|*|~NOTFOUND,EXCLUDE|localhost,EXCLUDE|127.0.0.1"
)


@pytest.fixture(scope="session")
def example_runs() -> ModuleType:
    path = Path(__file__).parents[1] / "figures" / "example_runs.py"
    spec = importlib.util.spec_from_file_location("example_runs", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def runs_folder(example_runs: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of each kind, and beside it a run that nobody may see."""
    root = tmp_path_factory.mktemp("dashboard")
    folder = example_runs.write_everything(root / "runs")
    example_runs.write_keras_run(root / "outside", steps=20)
    os.symlink(root / "outside", folder / "link-out")
    inside = example_runs.write_keras_run(folder / "half-link", steps=20)
    os.symlink(root / "outside" / "main", inside / "other")
    os.symlink(folder / "ctr-async", folder / "link-in")
    return Path(folder)


@pytest.fixture(scope="session")
def client(runs_folder: Path) -> FlaskClient:
    return create_app(runs_folder).server.test_client()


def call_back(client: FlaskClient, outputs: list[str], inputs: list[Any], state: list[Any]) -> Any:
    """Send what a browser sends when a callback's inputs change: ``[["id.property", value]…]``."""

    def written(pairs: list[Any]) -> list[dict[str, Any]]:
        split = [(*name.rsplit(".", 1), value) for name, value in pairs]
        return [{"id": i, "property": p, "value": v} for i, p, v in split]

    wanted = [dict(zip(("id", "property"), name.rsplit("."), strict=True)) for name in outputs]
    return client.post(
        "/_dash-update-component",
        json={
            "output": f"..{'...'.join(outputs)}.." if len(outputs) > 1 else outputs[0],
            "outputs": wanted if len(wanted) > 1 else wanted[0],
            "inputs": written(inputs),
            "state": written(state),
            "changedPropIds": [inputs[0][0]],
        },
    )


@pytest.fixture(scope="session")
def ask() -> Callable[..., Any]:
    """Ask for a figure as a page does that shows the given revision of it."""

    def figure(
        client: FlaskClient, graph: str, inputs: list[Any], revision: str | None = None
    ) -> Any:
        outputs = [f"{graph}.figure", f"{graph}.style", f"{graph}-revision.data"]
        return call_back(client, outputs, inputs, [[f"{graph}-revision.data", revision]])

    return figure


@pytest.fixture(scope="session")
def serve() -> Iterator[Callable[..., str]]:
    """Serve a folder on a free port with the server that the command uses; return the address."""
    running = []

    def start(folder: Path, token: str | None = None) -> str:
        listener = listen("127.0.0.1", 0)
        server = make_http_server(create_app(folder, token=token).server, listener)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        running.append((server, thread, listener))
        return f"http://127.0.0.1:{listener.getsockname()[1]}"

    yield start
    for server, thread, listener in running:
        server.shutdown()
        thread.join(10)
        server.server_close()
        listener.close()


@pytest.fixture(scope="session")
def new_browser() -> Iterator[Callable[..., Any]]:
    if not (Path(CHROMIUM).exists() and Path(CHROMEDRIVER).exists()):
        pytest.skip(f"needs {CHROMIUM} and {CHROMEDRIVER} (Debian: chromium, chromium-driver)")
    from selenium import webdriver

    profiles, drivers = [], []

    def start(width: int = 1400, height: int = 900) -> Any:
        profiles.append(tempfile.mkdtemp(prefix="chromium-"))
        options = webdriver.ChromeOptions()
        options.binary_location = CHROMIUM
        for flag in FLAGS.split():
            options.add_argument(flag.replace("|", " "))
        options.add_argument(f"--user-data-dir={profiles[-1]}")
        options.add_argument(f"--window-size={width},{height}")
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        service = webdriver.ChromeService(executable_path=CHROMEDRIVER)
        driver = webdriver.Chrome(options=options, service=service)
        driver.set_page_load_timeout(60)
        driver.set_script_timeout(30)
        drivers.append(driver)
        return driver

    yield start
    for driver in drivers:
        driver.quit()
    for profile in profiles:
        shutil.rmtree(profile, ignore_errors=True)


@pytest.fixture(scope="session")
def browser(new_browser: Callable[..., Any]) -> Any:
    return new_browser()


@pytest.fixture
def free_port() -> int:
    with closing(listen("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
