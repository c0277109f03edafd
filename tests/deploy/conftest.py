"""What lies in deploy/ is tried with the programs that read it: systemd's, Prometheus', the schemas of
Kubernetes. What is not installed is skipped, saying so. Real surroundings (a booted systemd, a built
image) have scripts of their own: scripts/checks/test_systemd, scripts/checks/test_container."""

import importlib.util
import json
import pathlib
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"

# The real daemon, as tests/server drives it.
_specification = importlib.util.spec_from_file_location(
    "server_conftest", ROOT / "tests/server/conftest.py")
server = importlib.util.module_from_spec(_specification)
_specification.loader.exec_module(server)
start = server.start
model_path = server.model_path


def find_program(name, package):
    program = shutil.which(name) or shutil.which(
        name, path=str(ROOT / "build/dependencies/prometheus/bin"))
    if program is None:
        pytest.skip(f"{name} is not installed (Debian's package {package})")
    return program


@pytest.fixture(scope="session")
def promtool():
    return find_program("promtool", "prometheus")


class Prometheus:
    """A real one, on a free port, that scrapes some daemons twice a second."""

    def __init__(self, folder, targets, rules=()):
        configuration = {
            "global": {"scrape_interval": "500ms", "scrape_timeout": "500ms",
                       "evaluation_interval": "500ms"},
            "rule_files": [str(rule) for rule in rules],
            "scrape_configs": [{"job_name": "lockstepd", "static_configs": [{"targets": targets}]}],
        }
        (folder / "prometheus.yaml").write_text(json.dumps(configuration))
        log = (folder / "log").open("w")
        self.process = subprocess.Popen(
            [find_program("prometheus", "prometheus"),
             f"--config.file={folder / 'prometheus.yaml'}", f"--storage.tsdb.path={folder / 'data'}",
             "--web.listen-address=127.0.0.1:0"],
            stdout=log, stderr=log)
        self.log = folder / "log"
        self.url = None
        server.wait_until(self._is_listening)
        server.wait_until(self._is_ready)

    def _is_listening(self):
        assert self.process.poll() is None, self.log.read_text()
        for line in self.log.read_text().splitlines():
            if "Listening on" in line and "address=" in line:
                self.url = "http://" + line.split("address=")[1].split()[0]
                return True
        return False

    def _is_ready(self):
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=server.PATIENCE_SECONDS):
                return True
        except urllib.error.HTTPError:
            return False

    def get(self, path, **parameters):
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(
                f"{self.url}/api/v1/{path}?{query}", timeout=server.PATIENCE_SECONDS) as answer:
            return json.load(answer)["data"]

    def values(self, expression):
        """The values of every series, as numbers; none while it has no time for the query."""
        try:
            result = self.get("query", query=expression)["result"]
        except urllib.error.HTTPError as error:
            if error.code != 503:
                raise
            return []
        return [float(series["value"][1]) for series in result]

    def stop(self):
        self.process.terminate()
        self.process.wait(server.PATIENCE_SECONDS)


@pytest.fixture
def prometheus(tmp_path):
    running = []

    def start_one(*arguments, **more):
        running.append(Prometheus(tmp_path, *arguments, **more))
        return running[-1]

    yield start_one
    for one in running:
        one.stop()
