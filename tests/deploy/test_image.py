"""Dockerfile, the system calls that a container may make, and deploy/compose.yaml, as far as they can
be checked without building: scripts/checks/test_container does that."""

import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
import yaml
from spdx_tools.spdx.parser.parse_anything import parse_file
from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document

from conftest import DEPLOY, ROOT, server

NEEDED = """mbind set_mempolicy get_mempolicy move_pages io_uring_setup io_uring_enter
io_uring_register memfd_create mlock sched_setaffinity futex""".split()
# What turns a hole in a daemon into one in its machine.
REFUSED = """mount umount2 ptrace bpf perf_event_open init_module kexec_load setns unshare pivot_root
chroot add_key keyctl userfaultfd process_vm_writev open_by_handle_at reboot swapon clone3""".split()


def profile():
    return json.loads((DEPLOY / "docker/seccomp.json").read_text())


def compose():
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text())


def test_the_profile_is_what_its_script_writes():
    subprocess.run([sys.executable, ROOT / "scripts/generate/make_seccomp.py", "--check"],
                   check=True)


def test_the_profile_allows_what_the_daemon_needs_and_little_else():
    assert profile()["defaultAction"] == "SCMP_ACT_ERRNO"
    allowed = [name for rule in profile()["syscalls"] if rule["action"] == "SCMP_ACT_ALLOW"
               for name in rule["names"]]
    assert len(allowed) == len(set(allowed))
    assert set(NEEDED) <= set(allowed)
    assert not set(REFUSED) & set(allowed)


def test_threads_are_allowed_and_namespaces_are_not():
    clone = next(rule for rule in profile()["syscalls"] if rule["names"] == ["clone"])
    (argument,) = clone["args"]
    flags = (0x20000000, 0x10000000, 0x08000000, 0x04000000, 0x02000000, 0x40000000, 0x00020000)
    assert argument["op"] == "SCMP_CMP_MASKED_EQ" and argument["valueTwo"] == 0
    assert argument["value"] == sum(flags)  # NEWPID NEWUSER NEWIPC NEWUTS NEWCGROUP NEWNET NEWNS


def test_what_the_image_is_built_from_is_not_ignored():
    kept = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines()
            if line.startswith("!")]
    assert all((ROOT / name).exists() for name in kept)
    copied = [word for line in (ROOT / "Dockerfile").read_text().splitlines()
              if line.startswith("COPY scripts") for word in line.split()[1:-1]]
    assert copied and set(copied) <= set(kept)


@pytest.mark.skipif(os.geteuid() != 0, reason="the image is tried with chroot, which needs root")
def test_the_image_holds_a_valid_list_of_all_that_is_in_it(tmp_path):
    """By package and by file, in SPDX 2.3; equal for equal images."""
    written = []
    for name in ("one", "two"):
        image = tmp_path / name
        subprocess.run([DEPLOY / "docker/collect-image", server.PROGRAM, ROOT / "LICENSE", image],
                       check=True, capture_output=True,
                       env={**os.environ, "SOURCE_DATE_EPOCH": "1700000000"})
        written.append((image / "usr/share/doc/lockstepd/lockstepd.spdx.json").read_text())
    assert written[0] == written[1]
    place = image / "usr/share/doc/lockstepd/lockstepd.spdx.json"
    document = parse_file(str(place))
    assert [message.validation_message
            for message in validate_full_spdx_document(document, "SPDX-2.3")] == []
    told = json.loads(written[0])
    assert told["creationInfo"]["created"] == "2023-11-14T22:13:20Z"
    packages = {package["name"]: package for package in told["packages"]}
    for name in ("libc6", "libssl3", "libstdc++6"):
        version = subprocess.run(["dpkg-query", "--show", "--showformat=${Version}", name],
                                 capture_output=True, text=True, check=True).stdout
        assert packages[name]["versionInfo"] == version
    assert packages["lockstepd"]["licenseDeclared"] == "MIT"
    # Every file once, with its hash, and as a part of one package.
    there = {f"./{path.relative_to(image)}": path for path in image.rglob("*")
             if path.is_file() and not path.is_symlink() and path != place}
    listed = {file["fileName"]: file for file in told["files"]}
    assert listed.keys() == there.keys() and len(listed) == len(told["files"])
    for name, path in there.items():
        sums = {each["algorithm"]: each["checksumValue"] for each in listed[name]["checksums"]}
        assert sums["SHA256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    owners = [relation for relation in told["relationships"]
              if relation["relationshipType"] == "CONTAINS"]
    assert sorted(each["relatedSpdxElement"] for each in owners) == sorted(
        file["SPDXID"] for file in told["files"])
    owner = {each["relatedSpdxElement"]: each["spdxElementId"] for each in owners}
    (library,) = [file for name, file in listed.items() if name.endswith("/libssl.so.3")]
    assert owner[library["SPDXID"]] == packages["libssl3"]["SPDXID"]


@pytest.mark.skipif(os.geteuid() != 0, reason="the image is tried with chroot, which needs root")
def test_the_image_has_what_its_program_loads_later(tmp_path):
    """The library of KV events, with all that it loads itself: it is found and used in there."""
    named = re.findall(r"(/lib/x86_64-linux-gnu/libzmq\.so\.\d+)", (ROOT / "Dockerfile").read_text())
    assert len(named) == 2 and len(set(named)) == 1  # of both images
    if not pathlib.Path(named[0]).exists():
        pytest.skip("without ZeroMQ: libzmq is not installed")
    image = tmp_path / "image"
    subprocess.run([DEPLOY / "docker/collect-image", server.PROGRAM, ROOT / "LICENSE", image,
                    named[0]], check=True, capture_output=True)
    shutil.copy(ROOT / "config/demo.gguf", image / "models")
    # An address of no machine: the refusal is ZeroMQ's.
    refused = subprocess.run(
        ["chroot", image, "/usr/local/bin/lockstepd", "serve", "--model", "/models/demo.gguf",
         "--kv-events", "tcp://192.0.2.1:5557"], capture_output=True, text=True)
    if "without ZeroMQ" in refused.stderr:
        pytest.skip("without ZeroMQ: this program is built without it")
    assert refused.returncode == 1
    assert "tcp://192.0.2.1:5557 (--kv-events): Cannot assign" in refused.stderr, refused.stderr


def test_the_services_are_closed():
    for name, service in compose()["services"].items():
        assert service["cap_drop"] == ["ALL"], name
        assert "no-new-privileges:true" in service["security_opt"], name
        assert all(port.startswith("127.0.0.1:") for port in service["ports"]), name
    daemon = compose()["services"]["lockstepd"]
    assert daemon["read_only"] and daemon["user"] != "0:0"


def test_what_the_services_mount_is_there():
    mounted = [volume.split(":")[0] for service in compose()["services"].values()
               for volume in service["volumes"]]
    beside = [name for name in mounted if name.startswith("./")]
    assert len(beside) == 3
    assert all((DEPLOY / name).exists() for name in beside)
    named = {name for name in mounted if not name.startswith((".", "$"))}
    assert named == set(compose()["volumes"])
    option = next(option for option in compose()["services"]["lockstepd"]["security_opt"]
                  if option.startswith("seccomp="))
    assert (DEPLOY / option.removeprefix("seccomp=")).exists()


def test_the_gpu_of_compose_is_a_target_of_the_image_and_a_device_by_name():
    override = yaml.safe_load((DEPLOY / "compose.gpu.yaml").read_text())["services"]
    assert set(override) == {"lockstepd"}
    service = override["lockstepd"]
    stages = re.findall(r"^FROM \S+(?: AS (\S+))?$", (ROOT / "Dockerfile").read_text(), re.M)
    assert service["build"]["target"] in stages
    assert stages[-1] == ""  # the CPU's is what is built where none is named
    (device,) = service["deploy"]["resources"]["reservations"]["devices"]
    assert device["driver"] == "nvidia" and device["capabilities"] == ["gpu"]
    result = server.run_program("--print-config", environment=service["environment"])
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["devices"]["value"] == "gpu0"


def test_grafana_finds_its_source_and_its_dashboard():
    provisioning = DEPLOY / "grafana/provisioning"
    sources = yaml.safe_load((provisioning / "datasources/prometheus.yaml").read_text())
    url = sources["datasources"][0]["url"]
    assert url.split("//")[1].split(":")[0] in compose()["services"]
    providers = yaml.safe_load((provisioning / "dashboards/lockstep.yaml").read_text())["providers"]
    volumes = " ".join(compose()["services"]["grafana"]["volumes"])
    assert providers[0]["options"]["path"] + "/lockstep.json" in volumes


def test_the_daemon_takes_what_the_service_gives_it():
    service = compose()["services"]["lockstepd"]
    arguments = service["command"]
    assert arguments[0] == "serve"
    result = server.run_program("--print-config", *arguments[1:], environment=service["environment"])
    assert result.returncode == 0, result.stderr
    drain = json.loads(result.stdout)["drain-seconds"]["value"]
    assert drain < int(service["stop_grace_period"].removesuffix("s"))
    check = service["healthcheck"]["test"]
    assert check[:2] == ["CMD", "/usr/local/bin/lockstepd"]


# lockstepd check-health, which the image's health check runs.

def test_a_ready_daemon_is_healthy(start):
    daemon = start().wait_until_ready()
    port = daemon.url.rsplit(":", 1)[1]
    for arguments in (["--url", daemon.url + "/health/ready"], ["--url", daemon.url],
                      ["--port", port], ["--port", port, "--host", "0.0.0.0"]):
        result = server.check_health(*arguments)
        assert (result.returncode, result.stderr) == (0, ""), arguments
        assert result.stdout.startswith("200 ")
    result = server.check_health(environment={"LOCKSTEP_PORT": port})
    assert result.returncode == 0


def test_a_daemon_that_is_not_there_or_not_ready_is_not(start):
    daemon = start().wait_until_ready()
    result = server.check_health("--url", daemon.url + "/nowhere")
    assert result.returncode == 1 and result.stdout.startswith("404 ")
    daemon.stop()
    result = server.check_health("--url", daemon.url)
    assert result.returncode == 1 and daemon.url in result.stderr


def test_a_daemon_on_a_unix_socket_is_asked_there(start, tmp_path):
    place = f"unix:{tmp_path / 'socket'}"
    daemon = start("--host", place)
    daemon.wait_for_line("ready after")
    for arguments in (["--host", place], ["--url", place]):
        result = server.check_health(*arguments)
        assert (result.returncode, result.stderr) == (0, ""), arguments
        assert result.stdout.startswith("200 ")
    daemon.stop()
    result = server.check_health("--url", place)
    assert result.returncode == 1 and place in result.stderr


def test_a_daemon_that_speaks_tls_is_asked_over_tls(start, tmp_path):
    def make_certificate(name):
        certificate, key = tmp_path / f"{name}.pem", tmp_path / f"{name}.key"
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
             "-nodes", "-days", "2", "-subj", f"/CN={name}", "-addext",
             f"subjectAltName=DNS:{name}", "-keyout", key, "-out", certificate],
            check=True, capture_output=True)
        key.chmod(0o600)
        return certificate, key

    own, key = make_certificate("localhost")
    other, _ = make_certificate("elsewhere")
    daemon = start("--tls-certificate", own, "--tls-key", key)
    daemon.wait_for_line("ready after")
    port = daemon.url.rsplit(":", 1)[1]
    local, address = f"https://localhost:{port}", f"https://127.0.0.1:{port}/health/live"
    # With the daemon's own options; with a certificate to trust that names the host; without any.
    for arguments in (["--port", port, "--tls-certificate", own], ["--url", local, "--tls-ca", own],
                      ["--url", address, "--insecure"],
                      ["--url", address, "--tls-certificate", own]):
        result = server.check_health(*arguments)
        assert (result.returncode, result.stderr) == (0, ""), arguments
        assert result.stdout.startswith("200 ")
    result = server.check_health("--url", local + "/nowhere", "--insecure")
    assert result.stdout.startswith("404 ")
    # Who is not trusted, or is not who was asked, is not healthy, with the reason.
    for arguments in (["--url", local, "--tls-ca", other], ["--url", address, "--tls-ca", own],
                      ["--port", port, "--tls-certificate", other]):
        result = server.check_health(*arguments)
        assert result.returncode == 1 and "certificate is not trusted" in result.stderr, arguments
    for arguments in (["--url", local], ["--url", "https://example.com", "--insecure"],
                      ["--url", local, "--tls-ca", key]):
        assert server.check_health(*arguments).returncode == 2, arguments
    daemon.stop()
    result = server.check_health("--url", local, "--insecure")
    assert result.returncode == 1 and local in result.stderr


def test_what_check_health_cannot_ask_is_refused():
    for arguments in (["--url", "ftp://localhost"], ["--url", "http://"], ["--timeout", "0"],
                      ["--port", "99999"]):
        assert server.run_program("check-health", *arguments).returncode == 2, arguments
