"""deploy/kubernetes: valid by the API's own schemas, and of one piece: what names something names what
there is, and the figures fit each other."""

import copy
import functools
import json
import re

import kubernetes_validate
import pytest
import requests
import yaml

from conftest import DEPLOY, server

FOLDER = DEPLOY / "kubernetes"
VERSION = "1.31"  # the oldest that has all of it (preStop sleep)
# Kinds that extensions define: what each must have at least.
EXTENSIONS = {
    ("inference.networking.k8s.io/v1", "InferencePool"):
        ["selector.matchLabels", "targetPorts", "endpointPickerRef.name",
         "endpointPickerRef.port.number"],
    ("gateway.networking.k8s.io/v1", "HTTPRoute"): ["parentRefs", "rules"],
    ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"):
        ["leaderWorkerTemplate.size", "leaderWorkerTemplate.workerTemplate.spec.containers"],
    ("monitoring.coreos.com/v1", "ServiceMonitor"): ["selector.matchLabels", "endpoints"],
}


@functools.cache
def parsed():
    """Every manifest's path and document."""
    return list(read_documents())


def documents():
    """They are the caller's own."""
    return copy.deepcopy(parsed())


def read_documents():
    for path in sorted(FOLDER.rglob("*.yaml")):
        if path.name == "kustomization.yaml" or path.parent.name in (
                "example", "gpu", "kv-events"):
            continue
        for document in yaml.safe_load_all(path.read_text()):
            yield path.relative_to(FOLDER), document


def find(kind, name="lockstepd"):
    found = [document for _, document in documents()
             if document["kind"] == kind and document["metadata"]["name"] == name]
    assert len(found) == 1, (kind, name)
    return found[0]


def part(document, dotted):
    for key in dotted.split("."):
        document = document[key]
    return document


def container():
    return find("Deployment")["spec"]["template"]["spec"]["containers"][0]


@pytest.mark.parametrize(
    "path, document", documents(),
    ids=[f"{path}:{document['kind']}" for path, document in documents()])
def test_each_object_is_valid(path, document):
    key = (document["apiVersion"], document["kind"])
    if key in EXTENSIONS:
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", document["metadata"]["name"])
        assert set(document) == {"apiVersion", "kind", "metadata", "spec"}
        for needed in EXTENSIONS[key]:
            assert part(document["spec"], needed)
    else:
        kubernetes_validate.validate(document, VERSION, strict=True)


def test_a_wrong_field_would_be_noticed():
    document = find("Deployment")
    document["spec"]["template"]["spec"]["containers"][0]["readynessProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(document, VERSION, strict=True)


def test_kustomizations_name_every_file_and_none_that_is_missing():
    for kustomization in FOLDER.rglob("kustomization.yaml"):
        listed = yaml.safe_load(kustomization.read_text())
        files = [*listed.get("resources", []), *listed.get("components", []),
                 *(patch["path"] for patch in listed.get("patches", []))]
        for name in files:
            assert (kustomization.parent / name).exists(), (kustomization, name)
        beside = {path.name for path in kustomization.parent.glob("*.yaml")}
        assert beside - {"kustomization.yaml"} == {name for name in files if name.endswith(".yaml")}


def test_the_patch_of_the_example_meets_what_it_patches():
    patch = yaml.safe_load((FOLDER / "example/size.yaml").read_text())
    kubernetes_validate.validate({**find("Deployment"), "metadata": patch["metadata"]}, VERSION)
    patched = patch["spec"]["template"]["spec"]["containers"][0]
    assert patched["name"] == container()["name"]
    assert patched["resources"]["requests"].keys() == container()["resources"]["requests"].keys()
    for resources in (patched["resources"], container()["resources"]):
        # Guaranteed, and in whole processors: what the kubelet's static managers ask for
        assert resources["requests"] == resources["limits"]
        assert resources["requests"]["cpu"].isdigit()


def merged(whole, patch):
    """A patch laid over a document as kustomize does it: null takes away, lists of what has a name
    are merged by it."""
    if isinstance(patch, dict):
        together = {**whole, **{key: merged(whole[key], value) if key in whole else value
                                for key, value in patch.items()}}
        return {key: value for key, value in together.items() if value is not None}
    if isinstance(patch, list) and all(isinstance(entry, dict) and "name" in entry
                                       for entry in [*whole, *patch]):
        patches = {entry["name"]: entry for entry in patch}
        there = {entry["name"] for entry in whole}
        return ([merged(entry, patches.get(entry["name"], {})) for entry in whole]
                + [entry for entry in patch if entry["name"] not in there])
    return patch


def test_the_component_for_gpus_asks_for_them_and_for_no_huge_pages():
    patch = yaml.safe_load((FOLDER / "gpu/gpus.yaml").read_text())
    deployment = merged(find("Deployment"), patch)
    kubernetes_validate.validate(deployment, VERSION, strict=True)
    patched = deployment["spec"]["template"]["spec"]["containers"]
    assert [each["name"] for each in patched] == [container()["name"]]
    resources = patched[0]["resources"]
    assert resources["requests"] == resources["limits"]
    assert resources["limits"].keys() == {"cpu", "memory", "nvidia.com/gpu"}
    environment = {each["name"]: each["value"] for each in patched[0]["env"]}
    result = server.run_program("--print-config", environment=environment)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["devices"]["value"] == "gpu"
    assert patched[0]["args"] == container()["args"]


def test_the_component_for_events_publishes_them_to_the_picker_alone():
    folder = FOLDER / "kv-events"
    deployment = merged(find("Deployment"), yaml.safe_load((folder / "events.yaml").read_text()))
    policy = yaml.safe_load((folder / "network-policy.yaml").read_text())
    for document in (deployment, policy):
        kubernetes_validate.validate(document, VERSION, strict=True)
    (patched,) = deployment["spec"]["template"]["spec"]["containers"]
    environment = {each["name"]: each.get("value", "10.0.0.1") for each in patched["env"]}
    address = environment.pop("POD_IP")
    environment = {name: value.replace("$(POD_IP)", address)
                   for name, value in environment.items()}
    result = server.run_program("--print-config", environment=environment)
    assert result.returncode == 0, result.stderr
    options = {name: entry["value"] for name, entry in json.loads(result.stdout).items()}
    ports = {port["name"]: port["containerPort"] for port in patched["ports"]}
    assert options["kv-events"] == f"tcp://*:{ports['kv-events']}"
    assert options["kv-events-pod"] == f"{address}:{ports['http']}"
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
    picker = find("Deployment", "lockstepd-endpoint-picker")["spec"]["template"]["metadata"]["labels"]
    assert policy["spec"]["ingress"] == [
        {"from": [{"podSelector": {"matchLabels": picker}}],
         "ports": [{"protocol": "TCP", "port": "kv-events"}]}]


def test_every_selector_meets_the_pods():
    for kind, dotted in (("Service", "spec.selector"),
                         ("Deployment", "spec.selector.matchLabels"),
                         ("PodDisruptionBudget", "spec.selector.matchLabels"),
                         ("InferencePool", "spec.selector.matchLabels")):
        labels = find("Deployment")["spec"]["template"]["metadata"]["labels"]
        assert part(find(kind), dotted).items() <= labels.items(), kind
    picker = find("Service", "lockstepd-endpoint-picker")
    labels = find("Deployment", "lockstepd-endpoint-picker")["spec"]["template"]["metadata"]["labels"]
    assert picker["spec"]["selector"].items() <= labels.items()
    # kustomize gives the service the labels that the monitor selects it by
    given = yaml.safe_load((FOLDER / "base/kustomization.yaml").read_text())["labels"][0]["pairs"]
    assert find("ServiceMonitor")["spec"]["selector"]["matchLabels"].items() <= given.items()


def test_names_meet():
    pool = find("InferencePool")
    assert find("HTTPRoute")["spec"]["rules"][0]["backendRefs"][0]["name"] == "lockstepd"
    reference = pool["spec"]["endpointPickerRef"]
    service = find("Service", reference["name"])
    assert reference["port"]["number"] in [port["port"] for port in service["spec"]["ports"]]
    assert find("HorizontalPodAutoscaler")["spec"]["scaleTargetRef"]["name"] == "lockstepd"
    port = container()["ports"][0]
    assert pool["spec"]["targetPorts"][0]["number"] == port["containerPort"]
    served = find("Service")["spec"]["ports"]
    assert [port["targetPort"] for port in served] == [
        port["name"] for port in container()["ports"]]
    assert find("ServiceMonitor")["spec"]["endpoints"][0]["port"] in [
        port["name"] for port in served]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container()[probe]["httpGet"]["port"] in [
            port["name"] for port in container()["ports"]]
    mounts = {mount["name"] for mount in container()["volumeMounts"]}
    volumes = find("Deployment")["spec"]["template"]["spec"]["volumes"]
    assert mounts == {volume["name"] for volume in volumes}


def test_the_daemons_configuration_is_good_and_fits(tmp_path):
    path = tmp_path / "lockstepd.json"
    path.write_text(find("ConfigMap")["data"]["lockstepd.json"])
    result = server.run_program("--print-config", "--config", path)
    assert result.returncode == 0, result.stderr
    options = {name: entry["value"] for name, entry in json.loads(result.stdout).items()}
    ports = {port["name"]: port["containerPort"] for port in container()["ports"]}
    assert options["port"] == ports["http"]
    assert options["probe-port"] == ports["probes"]
    assert options["probe-host"] == options["host"]
    # Behind a proxy: all connections are of one address, and it ends them sooner (Envoy: an hour).
    assert options["max-connections-per-address"] == options["max-connections"]
    assert options["idle-seconds"] > 3600
    # Keys come from the Secret, for the daemon's group to read; nothing but metrics is open.
    pod = find("Deployment")["spec"]["template"]["spec"]
    (keys,) = [mount for mount in container()["volumeMounts"] if mount["name"] == "keys"]
    assert options["api-keys"].startswith(keys["mountPath"] + "/") and keys["readOnly"]
    (volume,) = [volume for volume in pod["volumes"] if volume["name"] == "keys"]
    assert volume["secret"]["defaultMode"] == 0o440 and not volume["secret"].get("optional")
    assert pod["securityContext"]["fsGroup"] == pod["securityContext"]["runAsGroup"]
    assert options["metrics-without-key"]  # at the probe port alone
    annotations = find("Deployment")["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(ports["probes"])
    models = [mount["mountPath"] for mount in container()["volumeMounts"]
              if mount["name"] == "models"]
    assert options["model"].startswith(models[0] + "/")
    before = container()["lifecycle"]["preStop"]["sleep"]["seconds"]
    longest = before + options["drain-seconds"] + options["write-seconds"]
    assert pod["terminationGracePeriodSeconds"] > longest


def test_the_keys_are_made_as_the_document_says(start, tmp_path):
    text = (FOLDER / "README.md").read_text()
    command = re.search(r"^lockstepd (hash-key .*) > row.json", text, re.M)[1]
    made = server.run_program(*command.split())
    assert made.returncode == 0, made.stderr
    form = re.search(r"^printf '(.*)' ", text, re.M)[1]
    (tmp_path / "keys.json").write_text(form % made.stdout)
    (tmp_path / "keys.json").chmod(0o440)
    secret = re.search(r"^kubectl create secret generic (\S+) .*--from-file=(\S+)$", text, re.M)
    pod = find("Deployment")["spec"]["template"]["spec"]
    (volume,) = [volume for volume in pod["volumes"] if volume["name"] == "keys"]
    assert volume["secret"]["secretName"] == secret[1]
    configured = json.loads(find("ConfigMap")["data"]["lockstepd.json"])
    assert configured["api-keys"].endswith("/" + secret[2])
    given = {"--api-keys": tmp_path / "keys.json", "--probe-host": "127.0.0.1",
             "--probe-port": "0", "--metrics-without-key": "true"}
    daemon = start(*(word for pair in given.items() for word in pair)).wait_until_ready()
    probes = daemon.wait_for_line(r'health and metrics on ([^\s"]+)')[1]
    key = re.search(r"^sk-\S+$", made.stderr, re.M)[0]

    def status(url, **headers):
        return requests.get(url, headers=headers, timeout=server.PATIENCE_SECONDS).status_code

    assert status(f"{probes}/metrics") == status(f"{probes}/health/ready") == 200
    assert status(f"{daemon.url}/metrics") == status(f"{daemon.url}/v1/models") == 401
    assert status(f"{daemon.url}/v1/models", Authorization=f"Bearer {key}") == 200
    assert "warn" not in "\n".join(daemon.log)  # of the file's mode


def test_the_port_for_probes_is_for_monitoring_and_the_picker_alone():
    """Policies add up: what any of them lets in to the daemon's pods comes in."""
    labels = find("Deployment")["spec"]["template"]["metadata"]["labels"]
    policies = [document["spec"] for _, document in documents()
                if document["kind"] == "NetworkPolicy"]
    ours = [policy for policy in policies
            if policy["podSelector"]["matchLabels"].items() <= labels.items()]
    assert len(ours) == 2
    ports = {port["name"] for port in container()["ports"]}
    let_in = {name: [] for name in ports}
    for rule in (rule for policy in ours for rule in policy["ingress"]):
        for port in rule["ports"]:
            assert port["protocol"] == "TCP"
            let_in[port["port"]] += rule.get("from", ["everyone"])
    assert let_in.keys() == ports
    assert let_in["http"] == ["everyone"]
    picker = find("Deployment", "lockstepd-endpoint-picker")["spec"]["template"]["metadata"]["labels"]
    assert let_in["probes"] == [
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}},
         "podSelector": {"matchLabels": {"app.kubernetes.io/name": "prometheus"}}},
        {"podSelector": {"matchLabels": picker}}]
    assert any("Egress" in policy["policyTypes"] and policy["egress"] == [] for policy in ours)
    assert all("egress" not in policy or policy["egress"] == [] for policy in ours)


def test_the_probes_ask_what_the_daemon_answers(start):
    daemon = start().wait_until_ready()
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert daemon.get(container()[probe]["httpGet"]["path"]).status_code == 200


def test_the_gateway_and_the_autoscaler_read_metrics_that_there_are(start):
    text = start().wait_until_ready().get("/metrics").text
    families = set(re.findall(r"^# TYPE (\S+) gauge", text, re.M))
    plugins = yaml.safe_load(
        find("ConfigMap", "lockstepd-endpoint-picker")["data"]["plugins.yaml"])["plugins"]
    extractor = next(plugin["parameters"] for plugin in plugins
                     if plugin["type"] == "core-metrics-extractor")
    (engine,) = extractor["engineConfigs"]
    specifications = {engine[name] for name in ("queuedRequestsSpec", "runningRequestsSpec",
                                                "kvUsageSpec", "cacheInfoSpec")}
    scaled = find("HorizontalPodAutoscaler")["spec"]["metrics"][0]["pods"]["metric"]["name"]
    adapted = yaml.safe_load(
        find("ConfigMap", "prometheus-adapter-lockstep")["data"]["config.yaml"])["rules"][0]
    assert adapted["name"]["as"] == scaled
    assert specifications | {scaled} <= families
    cache = re.search(rf"^{engine['cacheInfoSpec']}\{{(.*)\}} 1$", text, re.M)[1]
    assert re.search(r'block_size="[1-9]', cache) and re.search(r'num_gpu_blocks="[1-9]', cache)


def test_the_picker_is_the_routers_and_knows_the_pods_by_its_groups_names():
    configuration = yaml.safe_load(
        find("ConfigMap", "lockstepd-endpoint-picker")["data"]["plugins.yaml"])
    assert configuration["apiVersion"] == "llm-d.ai/v1alpha1"
    extractor = next(plugin["parameters"] for plugin in configuration["plugins"]
                     if plugin["type"] == "core-metrics-extractor")
    labels = find("Deployment")["spec"]["template"]["metadata"]["labels"]
    (engine,) = extractor["engineConfigs"]
    assert labels[extractor["engineLabelKey"]] == engine["name"] == extractor["defaultEngine"]
    groups = {group: rule["resources"] for rule in find("Role", "lockstepd-endpoint-picker")["rules"]
              for group in rule["apiGroups"]}
    assert groups == {"": ["pods"], "inference.networking.k8s.io": ["inferencepools"],
                      "llm-d.ai": ["inferenceobjectives", "inferencemodelrewrites"]}
    assert all("networking.x-k8s.io" not in path.read_text() for path in FOLDER.rglob("*.yaml"))
    picker = find("Deployment", "lockstepd-endpoint-picker")["spec"]["template"]["spec"]
    (arguments,) = [each["args"] for each in picker["containers"]]
    ports = {port["name"]: port["containerPort"] for port in container()["ports"]}
    assert f"--model-server-metrics-port={ports['probes']}" in arguments


def host_pod():
    return find("LeaderWorkerSet", "lockstepd-hosts")["spec"]["leaderWorkerTemplate"]["workerTemplate"]


def test_the_set_of_hosts_has_fields_that_there_are():
    """The schema of LeaderWorkerSet is not at hand: the names and values are those of its Go types
    (LeaderWorkerSetSpec and LeaderWorkerTemplate, v1). The pods are held against the API's schema."""
    specification = find("LeaderWorkerSet", "lockstepd-hosts")["spec"]
    assert specification.keys() <= {"replicas", "leaderWorkerTemplate", "rolloutStrategy",
                                    "startupPolicy", "networkConfig"}
    assert specification["startupPolicy"] in {"LeaderCreated", "LeaderReady"}
    template = specification["leaderWorkerTemplate"]
    assert template.keys() <= {"leaderTemplate", "workerTemplate", "size", "restartPolicy",
                               "subGroupPolicy", "volumeClaimTemplates",
                               "persistentVolumeClaimRetentionPolicy"}
    assert template["restartPolicy"] in {"RecreateGroupOnPodRestart", "RecreateGroupAfterStart",
                                         "None"}
    assert template["size"] > 1
    pod = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "hosts"},
           "template": host_pod()}
    kubernetes_validate.validate(pod, VERSION, strict=True)
    broken = {**pod, "template": {**host_pod(), "spec": {"containers": [{"nam": "a"}]}}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, VERSION, strict=True)


def test_pods_of_hosts_are_as_safe_and_as_patient_as_those_of_one():
    alone = find("Deployment")["spec"]["template"]["spec"]
    pod = host_pod()["spec"]
    for name in ("securityContext", "terminationGracePeriodSeconds", "automountServiceAccountToken"):
        assert pod[name] == alone[name], name
    (inside,) = pod["containers"]
    for name in ("image", "args", "securityContext", "lifecycle", "startupProbe", "readinessProbe",
                 "livenessProbe"):
        assert inside[name] == container()[name], name
    assert inside["resources"]["requests"] == inside["resources"]["limits"]
    assert {mount["name"] for mount in inside["volumeMounts"]} == {
        volume["name"] for volume in pod["volumes"]}


def test_the_configuration_of_hosts_fits_what_the_controller_sets(tmp_path):
    path = tmp_path / "lockstepd.json"
    path.write_text(find("ConfigMap", "lockstepd-hosts")["data"]["lockstepd.json"])
    result = server.run_program("--print-config", "--config", path)
    assert result.returncode == 0, result.stderr
    options = {name: entry["value"] for name, entry in json.loads(result.stdout).items()}
    (inside,) = host_pod()["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in inside["ports"]}
    assert (options["port"], options["probe-port"], ports["hosts"]) == (
        ports["http"], ports["probes"], 7070)
    assert options["hosts"] == [] and options["host-index"] == options["host-count"] == "auto"
    mounts = {mount["name"]: mount["mountPath"] for mount in inside["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in host_pod()["spec"]["volumes"]}
    text = (FOLDER / "README.md").read_text()
    for option, name in (("api-keys", "keys"), ("hosts-secret", "secret")):
        secret = volumes[name]["secret"]
        assert secret["defaultMode"] == 0o440
        made = re.search(rf"^kubectl create secret generic {secret['secretName']} .*"
                         r"--from-file=(\S+)$", text, re.M)
        assert options[option] == f"{mounts[name]}/{made[1]}"
    # The daemon asks for all three: with what is missing it would compute alone, or not at all.
    secret = tmp_path / "hosts.secret"
    secret.write_text("0123456789abcdef")
    secret.chmod(0o440)
    model = DEPLOY.parent / "config/demo.gguf"
    variables = {"LWS_GROUP_SIZE": "2", "LWS_WORKER_INDEX": "1", "LWS_LEADER_ADDRESS": "a.example"}
    check = ("--check-config", "--model", model, "--hosts-secret", secret)
    good = server.run_program(*check, environment=variables)
    assert good.returncode == 0, good.stderr
    for left_out, words in (("LWS_WORKER_INDEX", "--host-index"), ("LWS_LEADER_ADDRESS", "--leader")):
        some = {name: value for name, value in variables.items() if name != left_out}
        refused = server.run_program(*check, environment=some)
        assert refused.returncode == 2 and words in refused.stderr


def test_clients_of_hosts_reach_leaders_alone_and_hosts_one_another():
    labels = host_pod()["metadata"]["labels"]
    selector = find("Service", "lockstepd-leader")["spec"]["selector"]
    assert selector == {**labels, "leaderworkerset.sigs.k8s.io/worker-index": "0"}
    # The controller makes a service of the set's name.
    assert all(document["metadata"]["name"] != "lockstepd-hosts" for _, document in documents()
               if document["kind"] == "Service")
    policy = find("NetworkPolicy", "lockstepd-hosts")["spec"]
    hosts = [{"podSelector": {"matchLabels": labels}}]
    assert policy["podSelector"]["matchLabels"] == labels
    assert {"from": hosts} in policy["ingress"] and {"to": hosts} in policy["egress"]
    open_ports = [rule["ports"] for rule in policy["ingress"] if "from" not in rule]
    assert open_ports == [[{"protocol": "TCP", "port": "http"}]]
