"""TLS on the real daemon: versions, slow and hostile handshakes, a new certificate at run time."""

import json
import shutil
import signal
import socket
import ssl
import subprocess

import pytest

from conftest import PATIENCE_SECONDS, run_program, wait_until

pytestmark = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="openssl, which makes certificates, is not installed")


def make_certificate(folder, name, kind="ec"):
    """A certificate for localhost, signed by itself, and its key."""
    certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
    new_key = ["rsa:2048"] if kind == "rsa" else ["ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", *new_key, "-nodes", "-days", "2", "-subj",
         f"/CN={name}", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", key,
         "-out", certificate], check=True, capture_output=True)
    key.chmod(0o600)
    return certificate, key


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certificates")
    return {name: make_certificate(folder, name, kind)
            for name, kind in (("first", "ec"), ("second", "rsa"))}


class Client:
    """One connection; answers are read one after the other."""

    def __init__(self, daemon, certificate, **versions):
        self.context = ssl.create_default_context(cafile=certificate)
        self.context.check_hostname = False
        for name, version in versions.items():
            setattr(self.context, name, version)
        self.socket = self.context.wrap_socket(connect(daemon), server_hostname="localhost")
        self.reader = self.socket.makefile("rb")

    def get(self, path, body=None):
        """Status and body of an answer."""
        text = b"" if body is None else json.dumps(body).encode()
        self.socket.sendall(
            (f"{'GET' if body is None else 'POST'} {path} HTTP/1.1\r\nHost: localhost\r\n"
             f"Content-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n").encode()
            + text)
        status = int(self.reader.readline().split()[1])
        headers = {}
        while (line := self.reader.readline()) != b"\r\n":
            name, value = line.decode().rstrip("\r\n").split(": ", 1)
            headers[name.lower()] = value
        if "content-length" in headers:
            return status, self.reader.read(int(headers["content-length"]))
        whole = b""
        while (size := int(self.reader.readline(), 16)) > 0:
            whole += self.reader.read(size)
            self.reader.read(2)
        self.reader.read(2)
        return status, whole

    def close(self):
        self.reader.close()
        self.socket.close()


def connect(daemon):
    host, port = daemon.url.split("://")[1].split(":")
    return socket.create_connection((host, int(port)), timeout=PATIENCE_SECONDS)


@pytest.fixture
def secure(start, certificates, tmp_path):
    """Starts a daemon with a copy of the first certificate: daemon.certificate, daemon.key."""

    def start_one(*options):
        files = [tmp_path / "certificate.pem", tmp_path / "key.pem"]
        for source, target in zip(certificates["first"], files):
            shutil.copy(source, target)
        daemon = start("--tls-certificate", files[0], "--tls-key", files[1],
                       "--served-model-name", "m", *options)
        daemon.certificate, daemon.key = files
        assert daemon.url.startswith("https://")

        def is_ready():
            client = Client(daemon, daemon.certificate)
            status, _ = client.get("/health/ready")
            client.close()
            return status == 200

        wait_until(is_ready)
        return daemon

    return start_one


def metric(client, series):
    return int(client.get("/metrics")[1].decode().split(f"\n{series} ")[1].split()[0])


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_requests_and_streams_and_large_bodies(secure, version):
    daemon = secure()
    client = Client(daemon, daemon.certificate, minimum_version=version, maximum_version=version)
    assert client.get("/health")[0] == 200
    body = {"model": "m", "prompt": "Once", "max_tokens": 20, "ignore_eos": True}
    status, text = client.get("/v1/completions", body)
    assert status == 200
    status, stream = client.get("/v1/completions", {**body, "stream": True})
    assert status == 200 and stream.endswith(b"data: [DONE]\n\n")
    # Many TLS records both ways.
    status, text = client.get("/tokenize", {"model": "m", "prompt": "once upon " * 40_000})
    assert status == 200 and len(json.loads(text)["tokens"]) > 40_000
    client.close()


def test_old_versions_are_refused(secure):
    daemon = secure()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    context.minimum_version = ssl.TLSVersion.TLSv1_1
    context.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises((ssl.SSLError, ConnectionResetError)):
        context.wrap_socket(connect(daemon))


def test_a_client_that_speaks_no_tls_is_told_so(secure):
    daemon = secure()
    with connect(daemon) as plain:
        plain.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = plain.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 400 ") and b"https://" in answer
    with connect(daemon) as garbage:
        garbage.sendall(b"\x00\x01\x02" * 100)
        try:
            while garbage.recv(4096):
                pass
        except ConnectionResetError:
            pass
    assert Client(daemon, daemon.certificate).get("/health")[0] == 200


def test_handshakes_that_drip_or_stop_are_cut_and_delay_nobody(secure, tmp_path):
    path = tmp_path / "c.json"
    path.write_text("{}")
    daemon = secure("--config", path, "--idle-seconds", "3600")
    watching = Client(daemon, daemon.certificate)

    def cuts():
        return metric(watching, 'lockstep_http_connections_cut_total{reason="head"}')

    hello = ssl.MemoryBIO()
    pending = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), hello,
                                                    server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        pending.do_handshake()
    hello = hello.read()
    daemon.reconfigure(path, **{"head-seconds": 2})
    stalled = [connect(daemon) for _ in range(30)]
    for index, client in enumerate(stalled):
        client.sendall(hello[: 1 + index * len(hello) // 30])
    # The deadline is for those alone: on a busy machine a good client is slow as well.
    wait_until(lambda: metric(watching, "lockstep_http_connections") + cuts() == 31)
    daemon.reconfigure(path)
    assert Client(daemon, daemon.certificate).get("/health")[0] == 200
    for client in stalled:  # each is closed, whatever it had begun
        try:
            while client.recv(4096):
                pass
        except ConnectionResetError:
            pass
    assert cuts() == 30


def serial(daemon):
    return ssl.get_server_certificate(connect_address(daemon))


def connect_address(daemon):
    host, port = daemon.url.split("://")[1].split(":")
    return host, int(port)


def test_sighup_puts_a_new_certificate_into_use_and_a_bad_one_changes_nothing(
        secure, certificates):
    daemon = secure()
    first = serial(daemon)
    old = Client(daemon, daemon.certificate)

    daemon.certificate.write_text("no certificate")
    daemon.process.send_signal(signal.SIGHUP)
    daemon.wait_for_line("tls-certificate")
    assert serial(daemon) == first

    certificate, key = certificates["second"]
    shutil.copy(certificate, daemon.certificate)  # with the old key: they do not fit
    daemon.process.send_signal(signal.SIGHUP)
    daemon.wait_for_line("key")
    assert serial(daemon) == first

    shutil.copy(key, daemon.key)
    daemon.process.send_signal(signal.SIGHUP)
    wait_until(lambda: serial(daemon) != first)
    assert Client(daemon, certificate).get("/health")[0] == 200
    assert old.get("/health")[0] == 200  # what was open goes on


def test_renegotiation_is_refused(secure):
    daemon = secure()
    host, port = connect_address(daemon)
    with subprocess.Popen(
            ["openssl", "s_client", "-connect", f"{host}:{port}", "-tls1_2"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as asking:
        asking.stdin.write(b"R\n")
        asking.stdin.flush()
        asking.wait(PATIENCE_SECONDS)  # with its input open: at its end it leaves without an answer
        assert b"no renegotiation" in asking.stdout.read()
    assert Client(daemon, daemon.certificate).get("/health")[0] == 200


def test_only_http_1_1_is_chosen_by_alpn(secure):
    daemon = secure()
    context = ssl.create_default_context(cafile=daemon.certificate)
    context.check_hostname = False
    context.set_alpn_protocols(["h2", "http/1.1"])
    with context.wrap_socket(connect(daemon)) as client:
        assert client.selected_alpn_protocol() == "http/1.1"
    context.set_alpn_protocols(["h2"])
    with pytest.raises((ssl.SSLError, ConnectionResetError)):
        context.wrap_socket(connect(daemon))


@pytest.mark.parametrize("wrong", ["certificate", "key", "both missing", "only one", "not its key"])
def test_files_that_cannot_be_used_are_exit_2_that_names_them(
        model_path, certificates, tmp_path, wrong):
    (certificate, key), (_, other) = certificates["first"], certificates["second"]
    nothing = tmp_path / "nothing.pem"
    nothing.write_text("nothing")
    arguments, named = {
        "certificate": ((nothing, key), nothing), "key": ((certificate, nothing), nothing),
        "both missing": ((tmp_path / "a", tmp_path / "b"), tmp_path / "a"),
        "only one": ((certificate, ""), "--tls-key"), "not its key": ((certificate, other), other),
    }[wrong]
    result = run_program("--model", model_path, "--port", "0", "--tls-certificate", arguments[0],
                         "--tls-key", arguments[1])
    assert result.returncode == 2, result.stderr
    assert str(named) in result.stderr


def test_a_key_that_others_may_write_is_refused_at_start_and_at_reload(
        secure, certificates, model_path, tmp_path):
    certificate, key = certificates["first"]
    loose = tmp_path / "loose.key"
    shutil.copy(key, loose)
    loose.chmod(0o620)
    ended = run_program("--model", model_path, "--port", "0", "--tls-certificate", certificate,
                        "--tls-key", loose)
    assert ended.returncode == 2
    assert f"chmod go-w {loose}" in ended.stderr
    daemon = secure()
    daemon.key.chmod(0o666)
    daemon.process.send_signal(signal.SIGHUP)
    daemon.wait_for_line(f"chmod go-w {daemon.key}")
    client = Client(daemon, daemon.certificate)
    assert client.get("/health")[0] == 200
    client.close()


def test_tls_1_2_with_cbc_or_without_forward_secrecy_is_refused(secure):
    daemon = secure()
    for ciphers in ("ECDHE-ECDSA-AES128-SHA", "AES128-GCM-SHA256"):
        context = ssl.create_default_context(cafile=daemon.certificate)
        context.check_hostname = False
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers(f"{ciphers}:@SECLEVEL=0")
        with pytest.raises((ssl.SSLError, ConnectionError)):
            context.wrap_socket(connect(daemon), server_hostname="localhost")


def anonymous(daemon):
    """Bytes of memory that are the daemon's own."""
    with open(f"/proc/{daemon.process.pid}/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("RssAnon"))


def first_flight():
    """What a client says first."""
    hello = ssl.MemoryBIO()
    pending = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), hello,
                                                    server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        pending.do_handshake()
    return hello.read()


def test_thousands_of_handshakes_that_are_dropped_leave_nothing_behind(secure):
    """Before, within, and behind the hello; with an answer of the server's that nobody takes."""
    daemon = secure("--idle-seconds", "3600")
    watching = Client(daemon, daemon.certificate)
    hello = first_flight()

    def drop(count):
        for index in range(count):
            with connect(daemon) as client:
                client.sendall(hello[: len(hello) * (index % 3) // 2])
        wait_until(lambda: metric(watching, "lockstep_http_connections") == 1)

    drop(500)  # from here on the allocator has what it keeps
    before = anonymous(daemon)
    drop(3000)
    # A session takes tens of KiB: those of these would come to more than 60 MiB.
    assert anonymous(daemon) - before < 16 << 20
    assert watching.get("/health")[0] == 200
    assert Client(daemon, daemon.certificate).get("/health")[0] == 200


def test_handshakes_that_never_end_hold_no_place_for_ever(secure, tmp_path):
    """They take all places that one address has; each is free again once it is cut."""
    path = tmp_path / "c.json"
    path.write_text("{}")
    daemon = secure("--config", path, "--max-connections-per-address", "8", "--idle-seconds",
                    "3600")
    watching = Client(daemon, daemon.certificate)
    daemon.reconfigure(path, **{"head-seconds": 2})
    stalled = [connect(daemon) for _ in range(7)]
    for client in stalled:
        client.sendall(first_flight())  # and what the server answers is not answered
    wait_until(lambda: metric(
        watching, 'lockstep_http_connections_cut_total{reason="head"}') == 7)
    wait_until(lambda: metric(watching, "lockstep_http_connections") == 1)
    daemon.reconfigure(path)
    clients = [Client(daemon, daemon.certificate) for _ in range(7)]
    assert [client.get("/v1/models")[0] for client in clients] == [200] * 7
    for client in [*stalled, *clients]:
        client.close()
