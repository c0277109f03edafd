"""deploy/kubernetes: valid by the API's own schemas, and of one piece: what names something names what
there is, and the figures fit each other."""

import json
import re

import kubernetes_validate
import pytest
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
    ("monitoring.coreos.com/v1", "ServiceMonitor"): ["selector.matchLabels", "endpoints"],
}


def documents():
    for path in sorted(FOLDER.rglob("*.yaml")):
        if path.name == "kustomization.yaml" or path.parent.name in ("example", "gpu"):
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
    "path, document", list(documents()),
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
    assert options["allowed-hosts"] == ["*"]  # a sidecar's requests come from a loopback address
    annotations = find("Deployment")["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(ports["probes"])
    models = [mount["mountPath"] for mount in container()["volumeMounts"]
              if mount["name"] == "models"]
    assert options["model"].startswith(models[0] + "/")
    pod = find("Deployment")["spec"]["template"]["spec"]
    before = container()["lifecycle"]["preStop"]["sleep"]["seconds"]
    longest = before + options["drain-seconds"] + options["write-seconds"]
    assert pod["terminationGracePeriodSeconds"] > longest


def test_the_probes_ask_what_the_daemon_answers(start):
    daemon = start().wait_until_ready()
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert daemon.get(container()[probe]["httpGet"]["path"]).status_code == 200


def test_the_gateway_and_the_autoscaler_read_metrics_that_there_are(start):
    text = start().wait_until_ready().get("/metrics").text
    families = set(re.findall(r"^# TYPE (\S+) gauge", text, re.M))
    plugins = yaml.safe_load(
        find("ConfigMap", "lockstepd-endpoint-picker")["data"]["plugins.yaml"])["plugins"]
    engine = next(plugin["parameters"]["engineConfigs"][0] for plugin in plugins
                  if plugin["type"] == "core-metrics-extractor")
    specifications = {engine[name] for name in
                      ("queuedRequestsSpec", "runningRequestsSpec", "kvUsageSpec")}
    scaled = find("HorizontalPodAutoscaler")["spec"]["metrics"][0]["pods"]["metric"]["name"]
    adapted = yaml.safe_load(
        find("ConfigMap", "prometheus-adapter-lockstep")["data"]["config.yaml"])["rules"][0]
    assert adapted["name"]["as"] == scaled
    assert specifications | {scaled} <= families
