import pytest

from deepinsight.dashboard import create_app
from deepinsight.dashboard.security import is_loopback, new_token, session_cookie

TOKEN = "a-token-of-some-length"


@pytest.fixture(scope="module")
def guarded(runs_folder):
    return create_app(runs_folder, token=TOKEN).server


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:8050", "127.0.0.1:1", "127.8.8.8", "[::1]:8050", "a.localhost"]
)
def test_without_a_token_this_machine_is_answered(client, host):
    assert client.get("/", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8050", "127.0.0.1.evil.example", "10.0.0.7", "[::2]", ""]
)
@pytest.mark.parametrize("path", ["/", "/_dash-layout", "/assets/style.css"])
def test_without_a_token_no_other_name_is_answered(client, host, path):
    response = client.get(path, headers={"Host": host})
    assert response.status_code == 403
    assert "localhost" in response.text


def test_a_callback_under_another_name_is_refused(client):
    response = client.post("/_dash-update-component", json={}, headers={"Host": "evil.example"})
    assert response.status_code == 403


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/"),
        ("GET", "/weights"),
        ("GET", "/_dash-layout"),
        ("GET", "/_dash-dependencies"),
        ("GET", "/assets/style.css"),
        ("GET", "/_dash-component-suites/dash/deps/react@18.3.1.min.js"),
        ("POST", "/_dash-update-component"),
        ("GET", "/?token=wrong"),
        ("POST", f"/?token={TOKEN}"),
        ("GET", "/?token="),
    ],
)
def test_with_a_token_nothing_is_answered_without_it(guarded, method, path):
    response = guarded.test_client().open(path, method=method)
    assert response.status_code == 401
    assert "Token required" in response.text
    assert TOKEN not in response.text
    assert "Set-Cookie" not in response.headers


@pytest.mark.parametrize(
    "credential", ["", "Bearer", "Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer é"]
)
def test_wrong_credentials_are_refused(guarded, credential):
    response = guarded.test_client().get("/", headers={"Authorization": credential})
    assert response.status_code == 401


@pytest.mark.parametrize("credential", [f"Bearer {TOKEN}", f"bearer  {TOKEN}"])
def test_a_program_sends_the_token_in_a_header(guarded, credential):
    headers = {"Authorization": credential, "Host": "gpu-box.example"}
    assert guarded.test_client().get("/", headers=headers).status_code == 200


def test_a_browser_gives_the_token_once_and_keeps_a_cookie(guarded):
    browser = guarded.test_client()
    response = browser.get(f"/weights?run=a%2Fb&token={TOKEN}&step=3")
    assert response.status_code == 303
    assert response.headers["Location"] == "/weights?run=a%2Fb&step=3"
    cookie = response.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Lax" in cookie
    assert TOKEN not in cookie
    assert browser.get("/").status_code == 200
    assert guarded.test_client().get("/").status_code == 401


def test_the_redirect_after_the_token_stays_on_this_site(guarded):
    response = guarded.test_client().get(f"//evil.example/x?token={TOKEN}")
    location = response.headers.get("Location", "/")
    assert location.startswith("/")
    assert not location.startswith("//")


def test_a_cookie_of_another_dashboard_does_not_open_this_one(guarded):
    browser = guarded.test_client()
    name, _ = session_cookie(TOKEN)
    browser.set_cookie(name, session_cookie("another")[1])
    assert browser.get("/").status_code == 401
    assert session_cookie("another")[0] != name


def test_pages_load_nothing_from_elsewhere(client):
    response = client.get("/")
    assert "default-src 'self'" in response.headers["Content-Security-Policy"]
    assert response.headers["X-Frame-Options"] == "DENY"
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert response.headers["Referrer-Policy"] == "no-referrer"
    assert "https://" not in response.text
    assert "http://" not in response.text


def test_new_tokens_are_long_and_different():
    assert len({new_token() for _ in range(10)}) == 10
    assert len(new_token()) >= 40


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("::1", True),
        ("[::1]", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.168.1.5", False),
        ("example.org", False),
        ("", False),
    ],
)
def test_loopback_addresses_are_told_from_others(host, expected):
    assert is_loopback(host) is expected
