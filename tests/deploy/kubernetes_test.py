"""Checks deploy/kubernetes against the Kubernetes schemas and the flags, and for consistency."""

import json
import re
import shutil
import subprocess

import kubernetes_validate
import pytest
import yaml

from deploy_files import DEPLOY, ROOT, documents, rendered, run, settled_flags

FOLDER = DEPLOY / "kubernetes"
OVERLAYS = ("cpu", "gpu")
# Files that hold complete objects. The files of the overlays are not among them: they are patches.
FILES = sorted(
    str(path.relative_to(DEPLOY))
    for folder in ("base", "autoscaling")
    for path in (FOLDER / folder).glob("*.yaml")
)
WITHOUT_SCHEMA = {
    "Kustomization",
    "ServiceMonitor",
    "ScaledObject",
}  # kinds of extensions, not of Kubernetes
KUBERNETES = ("1.30", "1.37")


def every(kind: str) -> list[dict]:
    return [document for file in FILES for document in documents(file) if document["kind"] == kind]


def only(kind: str) -> dict:
    (document,) = every(kind)
    return document


def pod() -> dict:
    return only("Deployment")["spec"]["template"]


def container() -> dict:
    (one,) = pod()["spec"]["containers"]
    return one


def overlay(name: str) -> list[dict]:
    return rendered(f"kubernetes/overlays/{name}")


def overlay_pod(name: str) -> dict:
    (deployment,) = [document for document in overlay(name) if document["kind"] == "Deployment"]
    return deployment["spec"]["template"]["spec"]


def validate(objects: list[dict], version: str) -> None:
    for one in objects:
        if one["kind"] not in WITHOUT_SCHEMA:
            kubernetes_validate.validate(one, version, strict=True)


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("file", FILES)
def test_schema(file, version):
    validate(documents(file), version)


def test_the_validator_sees_a_wrong_field():
    deployment = json.loads(json.dumps(only("Deployment")))
    deployment["spec"]["template"]["spec"]["containers"][0]["readinessprobe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(deployment, KUBERNETES[-1], strict=True)


def test_kustomization_lists_every_file():
    listed = set(only("Kustomization")["resources"])
    assert listed == {path.name for path in (FOLDER / "base").glob("*.yaml")} - {
        "kustomization.yaml"
    }
    assert sorted(OVERLAYS) == sorted(path.name for path in (FOLDER / "overlays").iterdir())


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("name", OVERLAYS)
def test_overlay(name, version):
    validate(overlay(name), version)
    (one,) = overlay_pod(name)["containers"]
    project = re.search(r"project\(quintet VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text())
    assert one["image"] == f"quintet:{project.group(1)}" + ("-cuda" if name == "gpu" else "")
    # The overlay keeps the probes, the security context and the model's volume of the base.
    assert all(one[key] == value for key, value in container().items() if key not in CHANGED)
    assert container()["volumeMounts"][0] in one["volumeMounts"]
    assert {"requests", "limits"} == one["resources"].keys()
    # The pod declares exactly the volumes that the container mounts.
    volumes = {volume["name"] for volume in overlay_pod(name)["volumes"]}
    assert {mount["name"] for mount in one["volumeMounts"]} == volumes


CHANGED = {"image", "env", "resources", "volumeMounts"}


@pytest.mark.parametrize("name", OVERLAYS)
def test_overlay_flags(name):
    (one,) = overlay_pod(name)["containers"]
    variables = {variable["name"]: variable["value"] for variable in one["env"]}
    flags = settled_flags(one["args"], variables)
    if name == "cpu":
        assert flags["device"] == "cpu"
        assert str(flags["threads"]) == one["resources"]["requests"]["cpu"]
    else:
        assert flags["device"] == "cuda"
        assert one["resources"]["limits"]["nvidia.com/gpu"] == 1
        writable = {
            mount["mountPath"] for mount in one["volumeMounts"] if not mount.get("readOnly")
        }
        assert writable == {variables["QUINTET_CACHE_DIR"]}


@pytest.mark.parametrize("name", OVERLAYS)
def test_overlay_as_kubectl_renders_it(name):
    """`rendered` gives the same objects as `kubectl kustomize`. Skipped without kubectl."""
    kubectl = shutil.which("kubectl")
    if not kubectl:
        pytest.skip("kubectl is not installed")
    version = subprocess.run(
        [kubectl, "version", "--client"], capture_output=True, text=True, check=False
    )
    if "Kustomize Version: v5" not in version.stdout:
        pytest.skip(f"kubectl has no Kustomize 5: {version.stdout}")
    made = list(yaml.safe_load_all(run(kubectl, "kustomize", FOLDER / "overlays" / name)))
    assert {key_of(document): by_name(document) for document in made} == {
        key_of(document): by_name(document) for document in overlay(name)
    }


def key_of(document: dict) -> tuple[str, str]:
    return document["kind"], document["metadata"]["name"]


def by_name(value):
    """Sorts lists of named objects, whose order has no meaning."""
    if isinstance(value, dict):
        return {key: by_name(item) for key, item in value.items()}
    if isinstance(value, list) and all(isinstance(item, dict) and "name" in item for item in value):
        return sorted((by_name(item) for item in value), key=lambda item: item["name"])
    return value


def test_network_policy_admits_what_is_served_and_nothing_else():
    policy = only("NetworkPolicy")["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"] and "egress" not in policy
    admitted = {
        port["port"]: (port["protocol"], rule["from"])
        for rule in policy["ingress"]
        for port in rule["ports"]
    }
    clients = [{"podSelector": {"matchLabels": {"quintet/client": "true"}}}]
    monitoring = [
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    ]
    assert admitted == {"grpc": ("TCP", clients), "http": ("TCP", monitoring)}


def test_selectors_find_the_pods():
    labels = pod()["metadata"]["labels"].items()
    selectors = [
        only("Deployment")["spec"]["selector"]["matchLabels"],
        only("PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        only("NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
    ]
    selectors += [service["spec"]["selector"] for service in every("Service")]
    for selector in selectors:
        assert selector and selector.items() <= labels


def test_ports_by_name():
    ports = {port["name"] for port in container()["ports"]}
    used = [port["targetPort"] for service in every("Service") for port in service["spec"]["ports"]]
    used += [
        container()[probe]["httpGet"]["port"]
        for probe in ("startupProbe", "livenessProbe", "readinessProbe")
    ]
    used += [
        port["port"] for rule in only("NetworkPolicy")["spec"]["ingress"] for port in rule["ports"]
    ]
    assert set(used) == ports


def test_services():
    (headless,) = [
        service for service in every("Service") if service["spec"].get("clusterIP") == "None"
    ]
    assert len(every("Service")) == 2
    for service in every("Service"):
        protocols = {port["name"]: port["appProtocol"] for port in service["spec"]["ports"]}
        assert protocols["grpc"] == "kubernetes.io/h2c"
    # Prometheus scrapes each pod once: the ServiceMonitor selects only the service that is not
    # headless.
    monitor = only("ServiceMonitor")["spec"]
    (watched,) = [
        service
        for service in every("Service")
        if monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    ]
    assert watched is not headless
    assert monitor["endpoints"][0]["port"] in {port["name"] for port in watched["spec"]["ports"]}


def test_flags():
    flags = settled_flags(container()["args"])
    ports = {port["name"]: port["containerPort"] for port in container()["ports"]}
    assert flags["listen"].endswith(f":{ports['grpc']}")
    assert flags["http-listen"].endswith(f":{ports['http']}")
    # The served model is in the mounted volume, and draining fits into the grace period.
    (mount,) = container()["volumeMounts"]
    assert flags["model"].split("=")[-1].startswith(mount["mountPath"] + "/") and mount["readOnly"]
    drain_s = float(flags["drain-delay"]) + float(flags["drain-timeout"])
    assert drain_s + 5 <= pod()["spec"]["terminationGracePeriodSeconds"] == 45


def test_probes():
    times = {}
    for probe, path in (
        ("startupProbe", "/readyz"),
        ("livenessProbe", "/healthz"),
        ("readinessProbe", "/readyz"),
    ):
        assert container()[probe]["httpGet"]["path"] == path
        times[probe] = tuple(
            container()[probe][field]
            for field in ("failureThreshold", "periodSeconds", "timeoutSeconds")
        )
    # The default timeout of 1 s is too short on a busy node: a failed liveness probe restarts the
    # pod.
    assert times == {
        "startupProbe": (60, 10, 5),
        "livenessProbe": (3, 10, 5),
        "readinessProbe": (3, 5, 3),
    }


def test_confinement():
    spec, own = pod()["spec"], container()["securityContext"]
    assert spec["securityContext"]["runAsNonRoot"] and spec["securityContext"]["runAsUser"] > 0
    assert spec["automountServiceAccountToken"] is False
    assert spec["enableServiceLinks"] is False
    assert (
        own["readOnlyRootFilesystem"]
        and not own["allowPrivilegeEscalation"]
        and own["capabilities"] == {"drop": ["ALL"]}
    )


def test_autoscalers_watch_the_same_queue():
    hpa, scaled = only("HorizontalPodAutoscaler")["spec"], only("ScaledObject")["spec"]
    assert (
        hpa["scaleTargetRef"]["name"]
        == scaled["scaleTargetRef"]["name"]
        == only("Deployment")["metadata"]["name"]
    )
    assert (hpa["minReplicas"], hpa["maxReplicas"]) == (
        scaled["minReplicaCount"],
        scaled["maxReplicaCount"],
    )
    metric, trigger = hpa["metrics"][0]["pods"], scaled["triggers"][0]["metadata"]
    assert trigger["query"] == f"sum({metric['metric']['name']})"
    assert metric["target"]["averageValue"] == trigger["threshold"] == "5"
