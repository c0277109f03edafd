"""deploy/README.md, "Behind a proxy": its options are good and fit the proxy's."""

import json
import re

from conftest import DEPLOY, server

TEXT = (DEPLOY / "README.md").read_text().split("## Behind a proxy")[1].split("\n## ")[0]
[NGINX] = re.findall(r"```nginx\n(.*?)```", TEXT, re.S)
[OPTIONS] = re.findall(r"```json\n(.*?)```", TEXT, re.S)


def directive(name):
    return re.search(rf"^ *{name} +([^;]*);", NGINX, re.M)[1]


def test_the_options_are_good_and_fit_the_proxys(tmp_path):
    path = tmp_path / "lockstepd.json"
    path.write_text(OPTIONS)
    result = server.run_program("--print-config", "--config", path)
    assert result.returncode == 0, result.stderr
    options = {name: entry["value"] for name, entry in json.loads(result.stdout).items()}
    assert options["allowed-hosts"] == [directive("server_name")]
    assert options["max-connections-per-address"] == options["max-connections"]
    assert options["idle-seconds"] > int(directive("keepalive_timeout").rstrip("s"))
    assert int(directive("client_max_body_size").rstrip("m")) << 20 == options["max-body-bytes"]
    address = directive("server").removeprefix("127.0.0.1:")
    assert int(address) == options["port"]


def test_the_host_that_the_proxy_hands_on_is_let_in(start, tmp_path):
    path = tmp_path / "lockstepd.json"
    path.write_text(OPTIONS)
    daemon = start("--config", str(path))
    for name, status in ((directive("server_name"), 200), ("evil.example", 403)):
        assert daemon.get("/version", headers={"Host": name}).status_code == status
